"""A kernel under judgement, and what it declares about itself."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from touchstone.conformance.discovery import arrays as array_libraries
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.contract import Contract


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
    outputs: tuple[str, ...] | None = None  # None: all
    diagnosed: bool = True  # whether wrong values are looked into
    compared: Counter[str] = field(
        default_factory=Counter, compare=False, repr=False
    )  # wrong answers with mutants, so far
    arrays: str = "torch"  # the library whose arrays the kernel takes and returns

    @property
    def contract(self) -> Contract:
        return registry.contract(self.op)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the kernel on tensors: our variants by keyword, since names are part of the signature, others as one
        would write it."""
        return self.contract.call(array_libraries.on_tensors(self.fn, self.arrays), arguments, by_name=self.own)


def not_called(*args: Any, **kwargs: Any) -> Any:
    """Stands in for a kernel where trials are listed or only its name counts."""
    raise AssertionError("a kernel was called where only its name counts")
