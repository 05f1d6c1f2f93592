"""The names of what is checked: each finding carries one."""

from enum import StrEnum


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
    INPUTS = "inputs"  # an input, or the memory around it, was written
    STATE = "state"  # settings and random generators of the process
    BOUNDS = "bounds"
    LIBRARY = "library"
    INVALID = "invalid"  # an invalid call without its error
    # several calls
    REPEAT = "repeat"  # a second call gives something else
    HELD = "held"  # a later call changed what an earlier one had returned
    PROPERTY = "property:"  # with the property's name
    UNDER = "under"  # wrong within an instrument, with the instrument's name
    # the process
    CRASH = "crash"
    HANG = "hang"
    MEMORY = "memory"
    CONTEXT = "context"  # not judged: an earlier trial left the GPU unusable
    CANARY = "canary"  # the comparison was tampered with

    def of(self, name: str) -> str:
        """The text of a check that carries a name: "property: shift invariance", "under races"."""
        return f"{self} {name}"
