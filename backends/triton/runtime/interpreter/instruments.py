"""What can be asked of the programs of a grid: another order, who wrote where, whether they race.

All are context managers, off by default, and cost nothing while off. The interpreter runs the programs of a grid one
after another, so a lost update never shows in its results; `races` looks at the accesses instead.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import launch, programs
from touchstone.backends.triton.runtime.interpreter.memory import _lanes, _Region, element, is_volatile
from touchstone.backends.triton.runtime.interpreter.registry import RaceCondition

Program = tuple[int, int, int]

ORDERS = ("forward", "reverse", "shuffled")
_ACQUIRES = (stock._ir.MEM_SEMANTIC.ACQUIRE, stock._ir.MEM_SEMANTIC.ACQUIRE_RELEASE)
_RELEASES = (stock._ir.MEM_SEMANTIC.RELEASE, stock._ir.MEM_SEMANTIC.ACQUIRE_RELEASE)


@contextlib.contextmanager
def schedule(order: str, seed: int = 0) -> Iterator[None]:
    """Run the programs of every grid "forward" (the last axis fastest), in "reverse", or "shuffled" by `seed`.

    A GPU promises no order. A program that waits for another one gives way to it (programs.py). In "reverse", copies
    and products of Gluon's are done as soon as they are begun, else as late as can be.
    """
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(map(repr, ORDERS))}, got {order!r}")
    before = launch.schedule, programs.prompt
    launch.schedule, programs.prompt = lambda grid: _programs(grid, order, seed), order == "reverse"
    try:
        yield
    finally:
        launch.schedule, programs.prompt = before


def _programs(grid: Program, order: str, seed: int) -> Iterable[Program]:
    numbers = np.arange(grid[0] * grid[1] * grid[2])
    if order == "shuffled":
        np.random.default_rng(seed).shuffle(numbers)
    elif order == "reverse":
        numbers = numbers[::-1]
    for number in numbers:
        x, y, z = np.unravel_index(number, grid)
        yield int(x), int(y), int(z)


class Access(NamedTuple):
    """What one program did to memory in one operation."""

    kind: str  # "load", "store" or "atomic"
    addresses: np.ndarray  # of the active lanes, uint64
    size: int  # bytes of an element
    bits: np.ndarray | None  # what a store wrote, as integers
    acquires: bool  # it sees what was released to its address before
    releases: bool  # what its program did before is seen by who acquires its address
    program: Program
    line: str  # "line 57 of softmax.py"
    region: _Region | None  # the argument that the pointers were derived from

    def __str__(self) -> str:
        verb = {"load": "loads", "store": "stores", "atomic": "updates atomically"}[self.kind]
        return f"program {self.program} {verb} ({self.line})"


class _Watcher:
    """Told of every launch and of every access."""

    def begin(self, kernel: str) -> None: ...

    def access(self, access: Access) -> None: ...

    def end(self) -> None: ...


@contextlib.contextmanager
def _watching(watcher: _Watcher) -> Iterator[None]:
    """Tell `watcher` of what kernels do."""
    names = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas")
    load, store, rmw, cas = before = [getattr(InterpreterBuilder, name) for name in names]

    def tell(builder, kind, ptrs, mask, bits=None, acquires=False, releases=False) -> None:
        addresses = ptrs.data
        lanes = _lanes(mask, addresses.shape)
        if bits is not None:
            bits = np.broadcast_to(bits, addresses.shape)
            bits = (bits if lanes is None else bits[lanes]).ravel()
        single = addresses.size == 1  # locks and counters are single elements; a tile of atomics orders nothing
        watcher.access(
            Access(
                kind,
                (addresses if lanes is None else addresses[lanes]).ravel(),
                stock._get_np_dtype(ptrs.get_element_ty()).itemsize,
                bits,
                acquires and single,
                releases and single,
                builder.grid_idx,
                programs.line(),
                ptrs.attr.get("region"),
            )
        )

    def masked_load(self, ptrs, mask, other, *rest, **policy):
        loaded = load(self, ptrs, mask, other, *rest, **policy)
        flag = is_volatile(rest, policy) and ptrs.data.size == 1
        tell(self, "atomic" if flag else "load", ptrs, mask, acquires=flag)
        return loaded

    def masked_store(self, ptrs, value, mask, *rest, **policy):
        store(self, ptrs, value, mask, *rest, **policy)
        tell(self, "store", ptrs, mask, bits=_bits(ptrs, value), releases=True)

    def atomic_rmw(self, op, ptr, val, mask, sem, scope):
        previous = rmw(self, op, ptr, val, mask, sem, scope)
        tell(self, "atomic", ptr, mask, acquires=sem in _ACQUIRES, releases=sem in _RELEASES)
        return previous

    def atomic_cas(self, ptr, cmp, val, sem, scope):
        previous = cas(self, ptr, cmp, val, sem, scope)
        tell(self, "atomic", ptr, None, acquires=sem in _ACQUIRES, releases=sem in _RELEASES)
        return previous

    for name, function in zip(names, (masked_load, masked_store, atomic_rmw, atomic_cas), strict=True):
        setattr(InterpreterBuilder, name, function)
    launch.watchers.append(watcher)
    try:
        yield
    finally:
        launch.watchers.remove(watcher)
        for name, function in zip(names, before, strict=True):
            setattr(InterpreterBuilder, name, function)


def _bits(ptrs: TensorHandle, value: TensorHandle) -> np.ndarray:
    data = value.data.astype(stock._get_np_dtype(ptrs.get_element_ty()), copy=False)
    return np.ascontiguousarray(data).view(f"u{data.dtype.itemsize}").reshape(data.shape)


class Writers(_Watcher):
    """Which program wrote to an address, and in which line."""

    def __init__(self) -> None:
        self._written: list[Access] = []

    def access(self, access: Access) -> None:
        if access.kind != "load":
            self._written.append(access._replace(bits=None, region=None))

    def of(self, address: int) -> str | None:
        """Who wrote the byte at `address` last: "program (3, 0, 0), line 57 of softmax.py". None: no kernel did."""
        for access in reversed(self._written):
            if (np.uint64(address) - access.addresses < access.size).any():  # wraps for higher addresses
                return f"program {access.program}, {access.line}"
        return None


@contextlib.contextmanager
def writers() -> Iterator[Writers]:
    """Within: every store and atomic of a kernel is recorded, for `Writers.of`."""
    backends.observing()
    found = Writers()
    with _watching(found):
        yield found


@contextlib.contextmanager
def races() -> Iterator[None]:
    """Within: a launch two of whose programs conflict raises RaceCondition when it is done.

    Two accesses conflict if one of them writes, not both are atomic, not both store the same value, and nothing orders
    them: an atomic on a single element that releases (a plain store to one does too) and one that acquires (a volatile
    load does too). Accesses to one element by different element sizes are not compared.
    """
    with _watching(_Races()):
        yield


class _Races(_Watcher):
    def begin(self, kernel: str) -> None:
        self.kernel = kernel
        self.accesses: list[Access] = []
        self.before: list[tuple[int, dict[Program, int]]] = []  # epoch and what was acquired so far, of each access
        self.epoch: dict[Program, int] = {}  # releases of a program
        self.acquired: dict[Program, dict[Program, int]] = {}  # program -> other programs up to which epoch
        self.released: dict[int, dict[Program, int]] = {}  # address -> programs up to which epoch

    def access(self, access: Access) -> None:
        program = access.program
        if access.acquires and (found := self.released.get(int(access.addresses[0]) if access.addresses.size else -1)):
            self.acquired[program] = _latest(self.acquired.get(program, {}), found)
        epoch = self.epoch.get(program, 0)
        self.accesses.append(access)
        self.before.append((epoch, self.acquired.get(program, {})))
        if access.releases and access.addresses.size:
            mine = {**self.acquired.get(program, {}), program: epoch}
            address = int(access.addresses[0])
            self.released[address] = _latest(self.released.get(address, {}), mine)
            self.epoch[program] = epoch + 1

    def end(self) -> None:
        for address, at in self._shared():
            last: tuple[int, int] | None = None  # the last write: its access and the element's place in it
            loads: list[tuple[int, int]] = []  # since then
            for here in at:
                for there in [*([last] if last else []), *(loads if self._writes(here) else [])]:
                    if self._conflict(there, here):
                        first, second = self.accesses[there[0]], self.accesses[here[0]]
                        raise RaceCondition(
                            f"{self.kernel}: programs race for {element(first.region or second.region, address)}: "
                            f"{first}, {second}, and nothing orders the two"
                        )
                if self._writes(here):
                    last, loads = here, []
                else:
                    loads.append(here)

    def _shared(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """Addresses that several programs touch, one of them writing and one not atomically; by whom, in order."""
        used = [i for i, access in enumerate(self.accesses) if access.addresses.size]
        if not used:
            return
        counts = [self.accesses[i].addresses.size for i in used]
        addresses = np.concatenate([self.accesses[i].addresses for i in used])
        number = {program: n for n, program in enumerate(dict.fromkeys(access.program for access in self.accesses))}
        access = np.repeat(used, counts)
        place = np.concatenate([np.arange(count) for count in counts])
        order = np.argsort(addresses, kind="stable")
        addresses, access, place = addresses[order], access[order], place[order]
        starts = np.flatnonzero(np.concatenate([[True], addresses[1:] != addresses[:-1]]))
        program = np.array([number[a.program] for a in self.accesses])[access]
        writes = np.array([a.kind != "load" for a in self.accesses])[access]
        plain = np.array([a.kind != "atomic" for a in self.accesses])[access]
        shared = np.minimum.reduceat(program, starts) != np.maximum.reduceat(program, starts)
        shared &= np.logical_or.reduceat(writes, starts) & np.logical_or.reduceat(plain, starts)
        ends = np.append(starts[1:], len(addresses))
        for start, end in zip(starts[shared], ends[shared], strict=True):
            at = slice(start, end)
            yield int(addresses[start]), list(zip(access[at].tolist(), place[at].tolist(), strict=True))

    def _writes(self, here: tuple[int, int]) -> bool:
        return self.accesses[here[0]].kind != "load"

    def _conflict(self, there: tuple[int, int], here: tuple[int, int]) -> bool:
        first, second = self.accesses[there[0]], self.accesses[here[0]]
        if first.program == second.program or (first.kind == second.kind and first.kind != "store"):
            return False
        if first.bits is not None and second.bits is not None and first.bits[there[1]] == second.bits[here[1]]:
            return False
        return self.before[here[0]][1].get(first.program, -1) < self.before[there[0]][0]


def _latest(one: dict[Program, int], other: dict[Program, int]) -> dict[Program, int]:
    """The later epoch of each program."""
    return {**one, **{program: max(epoch, one.get(program, -1)) for program, epoch in other.items()}}
