"""The cases of an op divided among the variants of a ladder, so that a target judges each of them about once.

A variant is at home in one dtype, or in as many as it takes for each dtype to have a variant. Kernels are specialised
on dtypes, and what compiles them costs more than what runs them: a ladder of three then compiles a third as much.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from touchstone.conformance.spec.contract import Case, Contract

FEWEST = 4  # cases of a variant, where its dtype has as many


@dataclass(frozen=True)
class Share:
    """What one variant of a ladder is judged on."""

    dtypes: tuple[str, ...]
    cases: frozenset[Case]


def shares(contract: Contract, takes: Mapping[str, Sequence[str]], cases: Sequence[Case]) -> dict[str, Share]:
    """The share of each variant of a ladder in `cases`. `takes`: the dtypes that each variant takes, in ladder order.

    Every case of a dtype that some variant takes is in a share; contiguous ones, the only ones that some kernels take,
    are in that of every variant at home in their dtype.
    """
    dtypes = homes(contract.dtypes, takes)
    found: dict[str, set[Case]] = {name: set() for name in takes}
    for dtype in contract.dtypes:
        at_home = [name for name in takes if dtype in dtypes[name]]
        offered = [case for case in cases if case.dtype == dtype]
        if not offered:
            continue
        each = min(len(at_home), math.ceil(FEWEST * len(at_home) / len(offered)))
        for turn, case in enumerate(offered):
            for step in range(len(at_home) if case.contiguous else each):
                found[at_home[(turn * each + step) % len(at_home)]].add(case)
    return {name: Share(dtypes[name], frozenset(found[name])) for name in takes}


def homes(dtypes: Sequence[str], takes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The dtypes in which each variant is at home: one that it takes and that the fewest before it have; then what is
    left over goes to those with the fewest."""
    found: dict[str, list[str]] = {name: [] for name in takes}

    def count(dtype: str) -> int:
        return sum(dtype in those for those in found.values())

    for name, those in takes.items():
        found[name] += sorted((dtype for dtype in dtypes if dtype in those), key=count)[:1]
    for dtype in dtypes:
        able = [name for name in takes if dtype in takes[name]]
        if able and not count(dtype):
            found[min(able, key=lambda name: len(found[name]))].append(dtype)
    return {name: tuple(those) for name, those in found.items()}
