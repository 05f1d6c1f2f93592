"""How kernels run: in which order, on how many cores, and what is recorded meanwhile."""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from touchstone import backends
from touchstone.backends.emulator.arguments import Move
from touchstone.backends.emulator.findings import line_of
from touchstone.backends.emulator.library import Loaded, Options

ORDERS = ("forward", "reverse", "shuffled")
STACK_BYTES = 256 << 10  # of a thread


@dataclass(frozen=True)
class Settings:
    """How launches run; changed by the context managers of this package."""

    order: str = "forward"
    seed: int = 0
    races: bool = False
    strict: bool = False
    portable: bool = False
    step_limit: int = 2_000_000
    zeroed: bool = False


settings = Settings()


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[None]:
    """Within: launches run with `changes` of `Settings`."""
    global settings
    before = settings
    settings = replace(settings, **changes)
    try:
        yield
    finally:
        settings = before


def schedule(order: str, seed: int = 0) -> contextlib.AbstractContextManager[None]:
    """Run threads, warps and blocks in "forward" or "reverse" order, or "shuffled" by `seed`: a GPU promises none."""
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(map(repr, ORDERS))}, got {order!r}")
    return using(order=order, seed=seed)


def races() -> contextlib.AbstractContextManager[None]:
    """Within: a launch in which two threads conflict raises RaceCondition.

    Two accesses to the same bytes conflict if one of them writes, not both are atomic, and nothing orders them: a
    barrier of the block, a warp operation that both lanes take part in, the grid's barrier, or an atomic after a
    __threadfence(). Volatile accesses count as atomic, since flags are made of them, but between lanes of a warp at
    elements of a shared array. A store by the copy engine needs a fence.proxy.async after what threads wrote. Raises
    StaleShared where stages of a shared array are stored over unread, while older ones are read again.
    """
    return using(races=True)


def strict() -> contextlib.AbstractContextManager[None]:
    """Within: what sm_70 and later allow raises too: threads that end while others of their block or warp wait for
    them, and a barrier of the block that is reached at several places of the text."""
    return using(strict=True)


def zeroed_locals() -> contextlib.AbstractContextManager[None]:
    """Within: local variables that a kernel gives no value begin as zeros, as they often do on a GPU; elsewhere as
    bytes of 0xFE. An answer that differs between the two depends on what nobody wrote."""
    return using(zeroed=True)


class Writers:
    """Which thread wrote to an address, and in which line."""

    def __init__(self) -> None:
        self._handle: tuple[ctypes.CDLL, int] | None = None
        self._launches: list[tuple[Loaded, tuple[int, int, int], tuple[int, int, int]]] = []
        self._moves: list[Move] = []

    def _record(
        self, loaded: Loaded, grid: tuple[int, int, int], block: tuple[int, int, int], moves: Sequence[Move]
    ) -> int:
        """The engine's record, told of one more launch. What was moved for it stays, so that no later launch has
        memory at the same addresses."""
        self._moves += moves
        if self._handle is None:
            self._handle = (loaded.engine, loaded.engine.ts_writers_new())
        elif self._handle[0] is not loaded.engine:
            return 0
        self._launches.append((loaded, grid, block))
        return self._handle[1]

    def of(self, address: int) -> str | None:
        """Who wrote the byte at `address` last: "block (3, 0, 0), thread (5, 0, 0), line 57 of softmax.cu". None: no
        kernel did."""
        found = (ctypes.c_uint32 * 4)()
        if self._handle is None:
            return None
        moved = [m.at + address - m.start for m in self._moves if m.start <= address < m.start + m.bytes]
        for place in (*reversed(moved), address):
            if self._handle[0].ts_writers_of(self._handle[1], place, found):
                break
        else:
            return None
        launch, block, thread, pc = found
        loaded, grid, threads = self._launches[launch - 1]
        file, _, line = line_of(loaded.path, pc - 1).partition(":")
        where = f"line {line} of {file}" if line else file
        return f"block {_triple(block, grid)}, thread {_triple(thread, threads)}, {where}"

    def __del__(self) -> None:
        if self._handle is not None:
            self._handle[0].ts_writers_delete(self._handle[1])
            self._handle = None


def _triple(number: int, sizes: tuple[int, int, int]) -> str:
    x, y, _ = sizes
    return f"({number % x}, {number // x % y}, {number // x // y})"


_writers: Writers | None = None


@contextlib.contextmanager
def writers() -> Iterator[Writers]:
    """Within: every write of a kernel to global memory is recorded, for `Writers.of`."""
    global _writers
    backends.observing()
    before, _writers = _writers, Writers()
    try:
        yield _writers
    finally:
        _writers = before


def record(
    loaded: Loaded, grid: tuple[int, int, int], block: tuple[int, int, int], moves: Sequence[Move] = ()
) -> int | None:
    """What the engine writes down who wrote where in, or None."""
    return _writers._record(loaded, grid, block, moves) if _writers else None


def options(cooperative: bool, strict: bool = False, cluster: Sequence[int] = (), **module: int) -> Options:
    """The settings in force for a launch, for the engine; `module`: where the program's own memory lies."""
    return Options(
        order=ORDERS.index(settings.order),
        workers=workers(),
        seed=settings.seed,
        checks=1,
        races=settings.races,
        cooperative=cooperative,
        strict=settings.strict or strict,
        stack_bytes=STACK_BYTES,
        step_limit=settings.step_limit,
        cluster=(ctypes.c_uint32 * 3)(*cluster),
        **module,
    )


def workers() -> int:
    """Processor cores that a launch spreads its blocks over: OMP_NUM_THREADS, else those of this process."""
    chosen = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    cores = len(os.sched_getaffinity(0))
    return max(1, min(int(chosen), cores)) if chosen.isdigit() else cores
