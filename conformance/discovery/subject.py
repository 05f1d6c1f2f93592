"""A kernel under judgement, and what it declares about itself."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from touchstone.conformance.discovery import arrays as array_libraries
from touchstone.conformance.discovery import launching, registry
from touchstone.conformance.spec.contract import Case, Contract


@dataclass(frozen=True)
class Subject:
    """A kernel under judgement, and what it declares about itself."""

    op: str
    fn: Callable[..., Any]
    name: str
    target: str  # "triton@cpu"; "user@cpu" for a function that is not ours
    device: str
    own: bool = False  # one of this repository's variants: held to the launcher's rules too
    compute: str | None = None
    deterministic: bool = True
    captures: bool = True  # whether a call can be captured as a CUDA graph
    outputs: tuple[str, ...] | None = None  # None: all
    diagnosed: bool = True  # whether wrong values are looked into
    compared: Counter[str] = field(
        default_factory=Counter, compare=False, repr=False
    )  # what was looked into so far: wrong answers with mutants, places that are undefined
    # the latest calls on cases of their own, in words, and their cases: what a kernel may have kept of
    recent: list[tuple[str, Case]] = field(default_factory=list, compare=False, repr=False)
    # cases on which its values were right
    passed: list[Case] = field(default_factory=list, compare=False, repr=False)
    # the number of the first call with right values, and its case
    held_first: list[tuple[int, Case]] = field(default_factory=list, compare=False, repr=False)
    # sizes whose calls under instruments another case has to make up for, since the kernel declined theirs
    owed: set[tuple[tuple[str, Any], ...]] = field(default_factory=set, compare=False, repr=False)
    arrays: str = "torch"  # the library whose arrays the kernel takes and returns
    arch: str = launching.NONE  # on the CPU, the architecture as which questions about CUDA are answered
    asked: Counter[str] = field(default_factory=Counter, compare=False, repr=False)  # those questions so far
    untrusted: bool = False  # whether its author may want a verdict that it does not deserve
    allow_library: bool = False  # and whether it may call the library for the work all the same
    strict: bool = True  # whether what its language leaves undefined counts as wrong, though GPUs agree on it

    def __post_init__(self) -> None:
        self.asked.update(launching.asked_at_import(self.fn))

    @property
    def contract(self) -> Contract:
        return registry.contract(self.op)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the kernel on tensors: our variants by keyword, since names are part of the signature, others as one
        would write it."""
        fn = array_libraries.on_tensors(self.fn, self.arrays)
        with self.calling():
            return self.contract.call(fn, arguments, by_name=self.own)

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """Around calls: within, questions about CUDA are answered as `arch` would."""
        return contextlib.nullcontext() if self.arch == launching.NONE else self._launcher.calling()

    @cached_property
    def _launcher(self) -> launching.Launcher:
        return launching.Launcher(self.fn, self.arch, self.asked)


def not_called(*args: Any, **kwargs: Any) -> Any:
    """Stands in for a kernel where trials are listed or only its name counts."""
    raise AssertionError("a kernel was called where only its name counts")
