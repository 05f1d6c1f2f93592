"""Between which two neighbouring sizes a kernel stops being right, all else being equal: the tile or the part that it
was made for."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from touchstone.conformance.judging import reading
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case, Contract

SECONDS, OF_A_KERNEL = 3.0, 6.0  # for each output that is wrong, and all of those of a kernel
LEAST = 3  # a size below which an answer is often right for want of anything to go wrong
NAMED = 2  # sizes that are named
WORK_LIMIT = 1e7  # work of a case above which nothing is tried
SEEDS = (1, 2)  # beside a case's own: other values, of which the sizes between which it turns have to be the same
TRIES = 3  # of an edge below which all sizes are right, as far as that is tried
BEYOND = 2  # times a size that is right, which is looked at too


def of_output(contract: Contract, case: Case, output: str, call: reading.Call, seconds: float) -> str | None:
    """The edges of a plain case of these sizes and parameters, in words; None: it is right there, or nowhere else."""
    if call is reading.nothing or contract.work(case) > WORK_LIMIT:
        return None
    end, plain = time.monotonic() + seconds, resized(contract, case, {})
    if plain is None or not is_wrong(contract, plain, output, call):
        return None
    return ", ".join(itertools.islice(_edges(contract, plain, output, call, end), NAMED)) or None


def _edges(contract: Contract, plain: Case, output: str, call: reading.Call, end: float) -> Iterator[str]:
    exact = contract.build(plain).exact
    indices = [exact[name] for name, operand in contract.operands.items() if operand.own_dtype]
    numbers = {n for values in indices if values is not None for n in values.flatten().tolist()}
    for letter, size in plain.size.items():
        if not isinstance(size, int) or size <= LEAST:
            continue

        @cache
        def wrong(n: int, letter: str = letter, seed: int = 0) -> bool | None:
            if time.monotonic() > end:
                return None
            one = resized(contract, plain, {letter: n})
            return is_wrong(contract, one and replace(one, seed=one.seed + seed), output, call)

        if (edge := _edge(size, wrong)) is None:
            continue
        right, first = edge
        if any(wrong(right, seed=seed) is not False or wrong(first, seed=seed) is not True for seed in SEEDS):
            continue  # the values decide, too
        if right in numbers:
            continue  # what an index says, and no size
        if _needs_a_multiple(right, first, wrong):
            multiples, others = (" and ".join(map(str, some)) for some in _about(right))
            yield f"right with {letter} {multiples}, wrong with {letter} {others}: it has to be a multiple of {right}"
            continue
        again = [n for n in (BEYOND * right, 2 * BEYOND * right) if wrong(n) is False]
        also = f" and {' and '.join(map(str, again))}" if again else ""
        yield f"right with {letter} {right}{also}, wrong with {letter} {first}, all else being equal"


def _about(tile: int) -> tuple[list[int], list[int]]:
    """Multiples of a tile, and sizes beside them."""
    return [tile, 2 * tile, 3 * tile], [tile + 1, 2 * tile - 1, 2 * tile + 1, 3 * tile - 1]


def _needs_a_multiple(right: int, first: int, wrong: Callable[[int], bool | None]) -> bool:
    """Whether all multiples of a tile are right, and all sizes beside them wrong, as far as that is tried."""
    if first != right + 1 or right < LEAST or right & (right - 1):
        return False
    multiples, others = _about(right)
    return all(wrong(n) is False for n in multiples) and all(wrong(n) is True for n in others)


def _edge(size: int, wrong: Callable[[int], bool | None]) -> tuple[int, int] | None:
    """The neighbours between which what is right becomes wrong, below a size that is; None: none can be told."""
    tried: list[int] = []
    for n in _doubled(size):
        if wrong(n) is False:
            tried.append(n)
            if wrong(n + 1):
                return n, n + 1
    if not tried:
        return None
    high = size
    for _ in range(TRIES):
        edge = _bisected(max((n for n in tried if n < high), default=high), high, wrong)
        if edge is None or any(wrong(n) is False for n in _above(edge[1], size)):
            return None
        smaller = next((n for n in _below(edge[0]) if wrong(n)), None)
        if smaller is None:
            return edge
        high = smaller  # what is right up to the edge is an island among wrong sizes
    return None


def _bisected(low: int, high: int, wrong: Callable[[int], bool | None]) -> tuple[int, int] | None:
    """Two neighbours of which the one is right and the next wrong, as `low` and `high` are."""
    while high - low > 1:
        middle = (low + high) // 2
        if (so := wrong(middle)) is None:
            return None
        low, high = (low, middle) if so else (middle, high)
    return (low, high) if low < high else None


def _below(right: int) -> Iterator[int]:
    """Sizes below one that is right, the nearest and others."""
    return (n for n in (right - 1, right - 2, right - 4, right * 3 // 4, right // 2 + 1, right // 4 + 1) if n >= LEAST)


def _above(wrong: int, size: int) -> Iterator[int]:
    """Sizes between one that is wrong and the largest."""
    return (n for n in (wrong + 1, wrong + 2, wrong + 4, (wrong + size) // 2) if n < size)


def _doubled(size: int) -> Iterator[int]:
    """Sizes below one, each twice the last."""
    return itertools.takewhile(lambda n: n < size, (LEAST - 1 << k for k in itertools.count(1)))


def resized(contract: Contract, case: Case, other: Mapping[str, int]) -> Case | None:
    """A plain case with the parameters of one, and its sizes but for others; None: they do not go together."""
    first = next(iter(contract.values))
    one = plain_case(contract, case.dtype, first, case.seed, {**case.size, **other})
    one = replace(one, params=case.params)
    try:
        return one if contract.valid(one) and contract.work(one) <= WORK_LIMIT else None
    except Exception:
        return None


def is_wrong(contract: Contract, case: Case | None, output: str, call: reading.Call) -> bool | None:
    """Whether an output is wrong on a case; None: it cannot be compared."""
    if case is None:
        return None
    try:
        given = reading.given_on(contract, case, output, call)
    except Exception:  # sizes that do not go together
        return None
    return None if given is None else bool(given.bad.any())
