"""What a process of pytest-xdist does because it is one of several: its share of the cores, the order of the tests, the
garbage collector, and how it ends."""

import atexit
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch

YOUNG = 20_000  # objects made before the garbage collector looks through them; Python's default is 700 to 2,000
Item = TypeVar("Item")


def share_cores(workers: int) -> None:
    """Give this process its part of the machine's cores where OMP_NUM_THREADS does not say how many it may use: with a
    thread per core in each of 16 workers, torch and the emulator spend their time waiting for each other."""
    if "OMP_NUM_THREADS" not in os.environ:
        share = max(1, len(os.sched_getaffinity(0)) // workers)
        os.environ["OMP_NUM_THREADS"] = str(share)  # for the emulator and for processes started from here
        torch.set_num_threads(share)


def collect_less() -> None:
    """Have the garbage collector run more seldom, and not look through what lasts as long as the process.

    The compilers' front ends are in Python and make objects by the million: of numba-cuda's a fifth of the time is the
    collector's otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])


def long_first(items: Sequence[Item], is_long: Callable[[Item], bool], workers: int) -> list[Item]:
    """The items so ordered that each of the parts that pytest-xdist deals out first, equal and of neighbours, begins
    with its share of the long ones; the others stay as they were.

    A long one that a process begins last is what all others wait for.
    """
    long, rest = [item for item in items if is_long(item)], [item for item in items if not is_long(item)]
    ordered: list[Item] = []
    for worker in range(workers):
        size = (len(items) - len(ordered)) // (workers - worker)
        ordered += long[worker::workers]
        taken = max(0, size - len(long[worker::workers]))
        ordered += rest[:taken]
        rest = rest[taken:]
    return ordered + rest


def leave() -> None:
    """End this process, whose results have been sent, without taking Python and CUDA to pieces first.

    Workers wait for the last one and then end together: CUDA takes sixteen of them down one after another, for ten
    seconds, after which pytest-xdist kills them.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Worker:
    """The hooks of such a process where kernels run on a GPU."""

    def __init__(self, workers: int, is_long: Callable[[pytest.Item], bool]):
        self._workers, self._is_long = workers, is_long

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = long_first(items, self._is_long, self._workers)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        collect_less()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if "exitstatus" in getattr(config, "workeroutput", {}):  # which the controller has been told
            leave()
