"""Shared memory of a program: its contents, and whether what touches it is in order.

A kernel's partitions and the engines that copy and multiply run at the same time. Each access is an event, and a
partition knows which events have happened before (its clock). Two accesses to one element, one of which writes, have
to be ordered; everything that orders is in machine.py. So a race is found whether or not the values show it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, RaceCondition
from touchstone.backends.triton.runtime.interpreter.undefined import MASKED_INTEGER

Clock = dict[Any, int]  # of what happens in order (a partition's epochs, a barrier's phases): up to which it is known


class Event:
    """One of things that happen in an order of their own, by its number there; inf until that is known."""

    __slots__ = ("key", "number")

    def __init__(self, key: Any = None, number: float = math.inf) -> None:
        self.key, self.number = key, number

    def known(self, clock: Clock) -> bool:
        return clock.get(self.key, 0) >= self.number


class Access(NamedTuple):
    """Who touches shared memory."""

    event: Event
    kind: str  # of _VERBS
    line: str
    partition: int  # that began it

    def __str__(self) -> str:
        return f"{self.line} {_VERBS[self.kind][0]}"


_VERBS = {  # what one does to shared memory, and what would have to come between it and a later access
    "load": ("loads", "an mbarrier, at which its partition arrives afterwards,"),
    "store": ("stores to", "an mbarrier, at which its partition arrives afterwards,"),
    "copy in": ("copies into", "a wait for the phase of the mbarrier that the copy completes"),
    "cp.async": ("copies into", "async_copy.wait_group"),
    "copy out": ("copies out of", "tma.store_wait"),
    "product": ("multiplies", "warpgroup_mma_wait"),
}


class _Part:
    """A part of an allocation that was touched."""

    __slots__ = ("array", "overlapping", "reads", "write")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.write: Access | None = None
        self.reads: dict[Any, Access] = {}  # by the keys of their events, the last of each
        self.overlapping: list[_Part] = [self]


class Allocation:
    """Shared memory that is allocated at once."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.parts: dict[Any, _Part] = {}
        self.barriers: dict[int, Any] = {}  # by their addresses

    def part(self, array: np.ndarray) -> _Part:
        key = array.__array_interface__["data"][0], array.shape, array.strides
        found = self.parts.get(key)
        if found is None:
            found = _Part(array)
            for other in self.parts.values():
                if np.may_share_memory(array, other.array) and np.shares_memory(array, other.array):
                    found.overlapping.append(other)
                    other.overlapping.append(found)
            self.parts[key] = found
        return found


class Memory:
    """A part of an allocation, as a kernel holds it: in the place of the compiler's handle."""

    __slots__ = ("allocation", "data", "dtype", "layout")

    def __init__(self, allocation: Allocation, data: np.ndarray, dtype: Any, layout: Any) -> None:
        self.allocation, self.data, self.dtype, self.layout = allocation, data, dtype, layout

    def of(self, data: np.ndarray, dtype: Any = None, layout: Any = None) -> "Memory":
        return Memory(self.allocation, data, dtype or self.dtype, layout or self.layout)

    def index(self, number: int) -> "Memory":
        if not 0 <= number < len(self.data):
            return _Outside(f"index {number} of shared memory of shape {self.data.shape}")
        return self.of(self.data[number])

    def sliced(self, offsets: list[int], shape: tuple[int, ...]) -> "Memory":
        ends = [start + length for start, length in zip(offsets, shape, strict=True)]
        if any(start < 0 or end > size for start, end, size in zip(offsets, ends, self.data.shape, strict=True)):
            raise KernelError(f"a slice from {offsets} of shape {list(shape)}, of memory of shape {self.data.shape}")
        return self.of(self.data[tuple(map(slice, offsets, ends))])

    def permuted(self, order: tuple[int, ...], layout: Any) -> "Memory":
        return self.of(self.data.transpose(order), layout=layout)

    def reshaped(self, shape: tuple[int, ...], layout: Any) -> "Memory":
        found = self.data.reshape(shape)
        if not np.shares_memory(found, self.data):
            raise NotInterpreted("reshape of shared memory that is permuted or sliced is not interpreted")
        return self.of(found, layout=layout)

    def reinterpreted(self, dtype: Any, shape: tuple[int, ...], layout: Any) -> "Memory":
        if not self.data.flags.c_contiguous:
            raise NotInterpreted("reinterpretation of shared memory that is permuted or sliced is not interpreted")
        to = stock._get_np_dtype(dtype)
        size = math.prod(shape) * to.itemsize
        if size > self.data.nbytes:
            raise KernelError(f"{size} bytes of shared memory that has {self.data.nbytes}")
        flat = self.data.reshape(-1).view(np.uint8)[:size]
        return self.of(flat.view(to).reshape(shape), dtype, layout)

    def read(self, access: Access, clock: Clock, fenced: Clock | None = None) -> None:
        """`access` reads it. `fenced`: up to which epochs stores are known to the engines, which read by another way.
        Raises RaceCondition."""
        part = self.allocation.part(self.data)
        for other in part.overlapping:
            written = other.write
            if written is None:
                continue
            if not written.event.known(clock):
                _race(written, access)
            elsewhere = written.kind == "store" and written.partition != access.partition
            if fenced is not None and elsewhere and not written.event.known(fenced):
                raise RaceCondition(
                    f"{access} shared memory that {written} in another partition without fence_async_shared: an "
                    "engine may read what was there before"
                )
        part.reads[access.event.key] = access

    def write(self, access: Access, clock: Clock) -> None:
        """`access` writes it. Raises RaceCondition."""
        part = self.allocation.part(self.data)
        for other in part.overlapping:
            if other.write is not None and not other.write.event.known(clock):
                _race(other.write, access)
            for read in other.reads.values():
                if not read.event.known(clock):
                    _race(read, access)
        part.write = access
        part.reads.clear()


class _Outside(Memory):
    """What an index outside of its memory gives: an address, which nothing may use."""

    __slots__ = ("message",)

    def __init__(self, message: str) -> None:
        self.message = message

    def __getattr__(self, name: str) -> Any:
        raise KernelError(self.message)

    def of(self, *args: Any, **options: Any) -> "Memory":
        return self

    index = sliced = permuted = reshaped = reinterpreted = of


def _race(before: Access, after: Access) -> None:
    raise RaceCondition(
        f"{after} shared memory that {before}, and nothing orders the two, as {_VERBS[before.kind][1]} would"
    )


def allocated(dtype: Any, shape: tuple[int, ...], layout: Any, line: str) -> Memory:
    """New memory, which holds NaN, integers 12345 (of 8 bits: 85)."""
    kind = stock._get_np_dtype(dtype)
    if dtype.is_floating():
        data = np.full(math.prod(shape) * kind.itemsize, 0xFF, np.uint8).view(kind).reshape(shape)
    else:
        data = np.full(shape, MASKED_INTEGER if kind.itemsize > 1 else 85, kind)
    return Memory(Allocation(line), data, dtype, layout)


def joined(into: Clock, other: Clock) -> None:
    """`into` knows what `other` does, too."""
    for key, number in other.items():
        if into.get(key, 0) < number:
            into[key] = number
