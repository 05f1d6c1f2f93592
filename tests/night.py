"""What runs by day and what only at night, with TOUCHSTONE_SCHEDULES > 3: tests of which each case takes seconds."""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

FEW = 3  # schedules, unless TOUCHSTONE_SCHEDULES asks for more
SEEDS = range(int(os.environ.get("TOUCHSTONE_SCHEDULES", FEW)))
NIGHT = len(SEEDS) > FEW
T = TypeVar("T")


def some(cases: Sequence[T], every: int) -> Sequence[T]:
    """One in so many cases, beginning with the first; at night all of them."""
    return cases if NIGHT else cases[::every]


def one_of_each(cases: Sequence[T], key: Callable[[T], Hashable]) -> Sequence[T]:
    """One case of each key, of the first key its first, of the second its second, and round; at night all of them."""
    groups: dict[Hashable, list[T]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return cases if NIGHT else [group[turn % len(group)] for turn, group in enumerate(groups.values())]
