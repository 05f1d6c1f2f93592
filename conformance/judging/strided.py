"""Of which operand it is the strides that make an output wrong, or of which two, all else being equal."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from touchstone.conformance.judging import edges, reading
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.contract import Case, Contract

SECONDS, OF_A_KERNEL = 3.0, 4.0  # for each output that is wrong, and all of those of a kernel
WORK_LIMIT = 1e7  # work of a case above which nothing is tried


def of_output(contract: Contract, case: Case, output: str, call: reading.Call, seconds: float) -> str | None:
    """The operands whose strides make an output wrong, in words: two that have to have the same, or one by itself.
    None: none are to be told, or it is wrong with contiguous operands, or right with plain values."""
    if call is reading.nothing or contract.work(case) > WORK_LIMIT:
        return None
    end, plain = time.monotonic() + seconds, reading.of_plain_values(contract, case)
    kinds = {name: layouts.nearer(kind) for name, kind in case.layouts if kind not in ("contiguous", "none")}

    def is_wrong(given: Mapping[str, str]) -> bool | None:
        if time.monotonic() > end:
            return None
        laid = replace(plain, layouts=tuple((name, given.get(name, kind)) for name, kind in plain.layouts))
        return edges.is_wrong(contract, laid, output, call)

    if not kinds or is_wrong({}) is not False or not is_wrong(kinds):
        return None
    for one, other, kind in _pairs(contract, case, kinds):
        alone = is_wrong({one: kind}) or is_wrong({other: kind})
        if alone and is_wrong({one: kind, other: kind}) is False:
            return f"right where {one} and {other} have the same strides"
    if len(kinds) > 1:
        found = [name for name, kind in kinds.items() if is_wrong({name: kind})]
        if len(found) == 1 and is_wrong({name: kind for name, kind in kinds.items() if name not in found}) is False:
            how = "at a multiple of 16 bytes" if kinds[found[0]] == "offset" else "contiguous"
            return f"right where {found[0]} is {how}, all else being equal"
    return None


def _pairs(contract: Contract, case: Case, kinds: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Two operands of one shape that have different strides in a case, and a layout of either that is not contiguous
    and has an own place for each element."""
    shapes = {name: contract.operand_shape(name, case) for name in contract.operands if name not in case.absent}
    for one, other in itertools.combinations(shapes, 2):
        if shapes[one] != shapes[other] or kinds.get(one) == kinds.get(other):
            continue
        for kind in dict.fromkeys(kinds.get(name, "none") for name in (one, other)):
            if kind not in ("none", *layouts.BROADCASTS):
                yield one, other, kind
