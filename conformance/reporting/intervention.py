"""Whether what failing cases have in common is why they fail: without it, all else being equal, they have to pass."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.traits import Trait
from touchstone.conformance.spec.contract import Case

SECONDS = 8.0  # for all further calls of a kernel
TRIED = 2  # failing cases, those of least work

Pairs = tuple[tuple[str, Any], ...]


class Intervention:
    """`is_wrong(case)` calls the kernel once more; None: there is nothing to compare."""

    def __init__(self, is_wrong: Callable[[Case], bool | None] = lambda case: None, end: float = 0.0) -> None:
        self.is_wrong, self.end = is_wrong, end

    def refutes(self, trait: Trait, wrong: Sequence[Case], right: Sequence[Case]) -> bool:
        """Whether one of the failing cases fails without the trait, too: with another dtype, size, layout, parameter or
        family of values in the place of one of its own, which some passing case has."""
        for case in sorted(wrong, key=registry.contract(wrong[0].op).work)[:TRIED]:
            other = next(_without(trait, case, right), None) if time.monotonic() < self.end else None
            if other is not None and self.is_wrong(other):
                return True
        return False


def _without(trait: Trait, case: Case, right: Sequence[Case]) -> Iterator[Case]:
    """The case with one thing otherwise, so that it has no longer the trait."""
    contract = registry.contract(case.op)
    for other in dict.fromkeys(_otherwise(case, right)):
        try:
            fits = not trait.has(other) and contract.valid(other) and contract.work(other) <= 2 * contract.work(case)
        except Exception:  # sizes that do not go together
            continue
        if fits:
            yield other


def _otherwise(case: Case, right: Sequence[Case]) -> Iterator[Case]:
    """The case with one thing as some passing case has it, the sizes that are the nearest first."""
    for at, (name, size) in enumerate(case.sizes):
        if isinstance(size, int):
            found = {n for other in right if isinstance(n := other.size.get(name), int) and n != size}
            for n in sorted(found, key=lambda n: abs(n - size)):
                yield replace(case, sizes=_with(case.sizes, at, n), drawn_as=None)
    for other in right:
        yield replace(case, dtype=other.dtype, drawn_as=None)
        yield replace(case, values=other.values, drawn_as=None)
        for at, layout in _apart(case.layouts, other.layouts):  # the same values, laid otherwise
            yield replace(case, layouts=_with(case.layouts, at, layout), drawn_as=case.drawn_as or case.id)
        for at, option in _apart(case.params, other.params):
            yield replace(case, params=_with(case.params, at, option), drawn_as=None)
        for at, dtype in _apart(case.dtypes, other.dtypes):
            yield replace(case, dtypes=_with(case.dtypes, at, dtype), drawn_as=None)


def _apart(mine: Pairs, theirs: Pairs) -> list[tuple[int, Any]]:
    """The places at which two cases have different values of the same name, and the other's."""
    return [
        (at, their)
        for at, ((name, one), (other, their)) in enumerate(zip(mine, theirs, strict=False))
        if name == other and one != their
    ]


def _with(pairs: Pairs, at: int, value: Any) -> Pairs:
    return tuple((name, value if n == at else old) for n, (name, old) in enumerate(pairs))
