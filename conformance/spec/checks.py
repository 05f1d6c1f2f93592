"""The names of what is checked, and of what is required: each finding carries one of either."""

from enum import StrEnum


class Requirement(StrEnum):
    """What is asked of a kernel; a report gives a verdict on each. The text is what `require` takes."""

    VALUES = "values"
    LAYOUTS = "layouts"
    SPECIAL = "special"
    EMPTY = "empty"
    OFFSETS = "offsets"
    DETERMINISM = "determinism"
    CONTRACT = "contract"

    @property
    def about(self) -> str:
        """What it asks, in a few words."""
        return _ABOUT[self]


_ABOUT = {
    Requirement.VALUES: "within the error budget, on finite inputs",
    Requirement.LAYOUTS: "strided, sliced, transposed and broadcast operands",
    Requirement.SPECIAL: "NaN and infinities in the inputs",
    Requirement.EMPTY: "sizes of 0",
    Requirement.OFFSETS: "offsets beyond 2^31 elements",
    Requirement.DETERMINISM: "a second call, other calls before, any order of programs, no races",
    Requirement.CONTRACT: "dtype, device, strides, aliasing, inputs unchanged, operands that may be None",
}


class Check(StrEnum):
    """What a finding is about. The text is what reports, records and the ids of findings have."""

    # one output
    RETURNS = "returns"  # another number of outputs, or no dense tensor
    SHAPE = "shape"
    DTYPE = "dtype"
    DEVICE = "device"
    STRIDES = "strides"
    ALIAS = "alias"  # memory shared with an input or with another call's output
    VALUES = "values"
    # one call
    RAISED = "raised"
    COMPILES = "compiles"  # a kernel that the compiler of its language refuses
    INPUTS = "inputs"  # an input, or the memory around it, was written
    STATE = "state"  # settings and random generators of the process
    BOUNDS = "bounds"
    LIBRARY = "library"
    HONESTY = "honest work"  # an untrusted kernel does not do the work, or does what is not allowed
    INVALID = "invalid"  # an invalid call without its error
    # several calls
    GRAPH = "graph"  # a call that cannot be captured as a CUDA graph, or whose replay gives something else
    REPEAT = "repeat"  # a second call gives something else
    HELD = "held"  # a later call changed what an earlier one had returned
    PROPERTY = "property:"  # with the property's name
    UNDER = "under"  # wrong within an instrument, with the instrument's name
    PORTABILITY = "portability"  # relies on what its language leaves undefined
    # the process
    CRASH = "crash"
    HANG = "hang"
    MEMORY = "memory"
    CONTEXT = "context"  # not judged: an earlier trial left the GPU unusable
    CANARY = "canary"  # the comparison was tampered with

    def of(self, name: str) -> str:
        """The text of a check that carries a name: "property: shift invariance", "under races"."""
        return f"{self} {name}"
