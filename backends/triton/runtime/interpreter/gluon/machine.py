"""A program's partitions and engines: barriers, copies, products of warpgroups, and what orders them.

Everything that an engine does is late: a copy into shared memory arrives when no partition can go on without it, a
copy out leaves, and a product is formed, when they are waited for. Under another schedule (`programs.prompt`) all is
done as soon as it is begun. A kernel that is right is right either way.
"""

import collections
import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from triton._C.libtriton import ir
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone.backends.triton.runtime.interpreter import launch, programs
from touchstone.backends.triton.runtime.interpreter.gluon.shared import Access, Clock, Event, Memory, allocated, joined
from touchstone.backends.triton.runtime.interpreter.memory import _lanes, _Region, check_box
from touchstone.backends.triton.runtime.interpreter.memory import _region as in_bounds
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, NotInterpreted, RaceCondition

MOST_BYTES = 2**20 - 1  # that an mbarrier counts


class Strand:
    """A partition, or the whole program before it divides: what it knows, and what it has begun."""

    def __init__(self, team: programs.Team, number: int, warps: int, before: "Strand | None" = None) -> None:
        self.team, self.number, self.warps = team, number, warps
        self.clock: Clock = dict(before.clock) if before else {}
        # A program's stores are known to the engines when it divides.
        self.fenced: Clock = dict(before.clock) if before else {}
        self.clock[number] = 1
        self.event = Event(number, 1)
        self.products: collections.deque[Product] = collections.deque()
        self.stores: collections.deque[_CopyOut] = collections.deque()
        self.copies: list[_Fetched] = []  # by cp.async, of the group that is not closed
        self.groups: collections.deque[list[_Fetched]] = collections.deque()
        self.begun = collections.Counter[str]()  # products, copies out, copies of cp.async

    def release(self) -> tuple[Clock, Clock]:
        """What it knows by now, and what is fenced of it; what follows is not known to those who know this."""
        known = dict(self.clock), dict(self.fenced)
        self.clock[self.number] += 1
        self.event = Event(self.number, self.clock[self.number])
        return known

    def acquire(self, known: tuple[Clock, Clock]) -> None:
        joined(self.clock, known[0])
        joined(self.fenced, known[1])

    def access(self, kind: str, event: Event | None = None) -> Access:
        return Access(event or self.event, kind, programs.line(), self.number)

    def finished(self, what: str, pending: int) -> None:
        self.clock[self.number, what] = self.begun[what] - pending

    def began(self, what: str) -> Event:
        self.begun[what] += 1
        return Event((self.number, what), self.begun[what])


def strand() -> Strand:
    """Of the partition that runs."""
    program = programs.current()
    assert program is not None
    if program.strand is None:
        team = programs.team()
        program.strand = Strand(team, 0, stock.interpreter_builder.options.num_warps)
        team.state = [program.strand]
        team.at_end = lambda: _ends(team.state)
    return program.strand


def _ends(strands: list[Strand]) -> None:
    for each in strands:
        for copy in each.stores:
            raise RaceCondition(
                f"the program ends while {copy.access.line} may still copy out of its shared memory: tma.store_wait"
            )


class Barrier:
    """An mbarrier: a phase is complete when all arrivals and all bytes that it waits for have come."""

    def __init__(self, name: str, count: int) -> None:
        if not 1 <= count < 2**20:
            raise KernelError(f"mbarrier.init: count has to be 1 to {2**20 - 1}, not {count}")
        self.name, self.count, self.left, self.bytes, self.phases = name, count, count, 0, 0
        self.gathering: tuple[Clock, Clock] = {}, {}  # what is known to those that arrived in this phase
        self.released: tuple[Clock, Clock] = {}, {}  # and in those that are complete

    def arrive(self, known: tuple[Clock, Clock], count: int = 1) -> None:
        """`known` is what who arrives knows, and what is fenced of it."""
        if count > self.left:
            raise KernelError(f"{count} arrivals at {self.name}, of which this phase takes {self.left} more")
        self.left -= count
        for gathered, clock in zip(self.gathering, known, strict=True):
            joined(gathered, clock)
        self._turn()

    def expect(self, size: int) -> None:
        self.bytes += size
        if abs(self.bytes) > MOST_BYTES:
            raise KernelError(f"{self.name} counts {self.bytes} bytes; an mbarrier counts up to {MOST_BYTES}")

    def receive(self, size: int, event: Event) -> None:
        event.key, event.number = self, self.phases + 1
        self.expect(-size)
        self._turn()

    def _turn(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.phases, self.left = self.phases + 1, self.count
            for released, gathered in zip(self.released, self.gathering, strict=True):
                joined(released, gathered)
                gathered.clear()
            self.released[0][self] = self.phases

    def passed(self, parity: int) -> bool:
        """Whether the last complete phase is one of `parity`; before the first one, the one before is odd."""
        return self.phases & 1 != parity

    def lacks(self) -> str:
        lacking = [f"{self.left} of {self.count} arrivals"] if self.left else []
        if self.bytes > 0:
            lacking.append(f"{self.bytes} bytes")
        if self.bytes < 0:
            lacking.append(f"an expectation of {-self.bytes} bytes that have come")
        return " and ".join(lacking)


def _barrier(memory: Memory) -> Barrier:
    found = memory.allocation.barriers.get(_address(memory))
    if found is None:
        raise KernelError("an mbarrier is used that was not initialised, or is no longer valid")
    return found


def _address(memory: Memory) -> int:
    if memory.data.dtype.itemsize != 8 or memory.data.size != 1:
        raise KernelError(f"an mbarrier is one int64, not {memory.dtype} of shape {memory.data.shape}")
    return memory.data.__array_interface__["data"][0]


def _alike(left: Any, right: Any) -> bool:
    """Whether the compiler takes the types for one: it has no signs."""
    return left == right or (left.is_int() and right.is_int() and left.int_bitwidth == right.int_bitwidth)


class _Tile:
    """A box of a tensor that a descriptor describes, as far as it lies in the tensor."""

    def __init__(
        self, descriptor: Any, coordinates: list[TensorHandle], memory: Memory, what: str, stores: bool = False
    ) -> None:
        self.descriptor, self.item = descriptor, memory.data.dtype.itemsize
        self.start = [int(each.data.item()) for each in coordinates]
        self.shape = shape = tuple(descriptor.block_shape)
        have = memory.data.shape
        if have[max(0, len(have) - len(shape)) :] != shape or math.prod(have) != math.prod(shape):
            raise KernelError(f"{what}: shared memory of shape {have} for blocks of shape {shape}")
        if len(have) == len(shape) and memory.layout != descriptor.layout:
            raise KernelError(f"{what}: shared memory in {memory.layout}, a descriptor of {descriptor.layout}")
        if not _alike(memory.dtype, element := descriptor.base.dtype.element_ty):
            raise KernelError(f"{what}: shared memory of {memory.dtype}, a tensor of {element}")
        if len(self.start) != len(shape):
            raise KernelError(f"{what}: {len(self.start)} coordinates for {len(shape)} axes")
        check_box(self.start, self.item, what, stores)
        sizes = [int(size.data.item()) for size in descriptor.shape]
        strides = [int(stride.data.item()) * self.item for stride in descriptor.strides]
        first = [max(0, start) for start in self.start]
        last = [min(start + length, size) for start, length, size in zip(self.start, shape, sizes, strict=True)]
        self.counts = [max(0, end - begin) for begin, end in zip(first, last, strict=True)]
        self.inside = tuple(
            slice(begin - start, begin - start + count)
            for begin, start, count in zip(first, self.start, self.counts, strict=True)
        )
        self.strides = strides
        self.offset = sum(begin * stride for begin, stride in zip(first, strides, strict=True))
        self.empty = 0 in self.counts
        self.direct = self._direct()

    def _direct(self) -> np.ndarray | None:
        """The part of the tensor as it lies in memory; None where it does not lie in the tensor whole, or others watch
        every access."""
        region: _Region | None = self.descriptor.base.attr.get("region")
        if region is None or launch.watchers or self.empty:
            return None
        start = int(self.descriptor.base.data.item()) + self.offset - region.start
        end = start + sum((count - 1) * stride for count, stride in zip(self.counts, self.strides, strict=True))
        if start % self.item or start < 0 or region.start + end + self.item > region.end or min(self.strides) < 0:
            return None
        flat = region.view(self.item)[start // self.item :]
        return np.lib.stride_tricks.as_strided(flat, self.counts, self.strides)

    def _pointers(self) -> tuple[TensorHandle, np.ndarray]:
        handles = [TensorHandle(np.array([start], np.int32), stock.tl.int32) for start in self.start]
        return self.descriptor.materialize_pointers(handles)

    def read(self, dtype: np.dtype) -> np.ndarray:
        fill = np.zeros((), dtype)
        if self.descriptor.padding == stock._ir.PADDING_OPTION.PAD_NAN:
            fill = np.array(0xFF if dtype.kind == "u" else np.nan, dtype)  # of float8, whose bits are kept
        if self.empty or self.direct is not None:
            values = np.full(self.shape, fill, dtype)
            if self.direct is not None:
                values[self.inside] = self.direct.view(dtype)
            return values
        pointers, mask = self._pointers()
        other = TensorHandle(np.full(self.shape, fill, dtype), pointers.get_element_ty())
        return stock.interpreter_builder.create_masked_load(pointers, mask, other, None, None, False).data

    def check(self) -> None:
        """Raises OutOfBounds where the descriptor leads out of its tensor."""
        if self.direct is None and not self.empty:
            pointers, mask = self._pointers()
            in_bounds(pointers, _lanes(mask, pointers.data.shape), self.item, "store")

    def write(self, values: np.ndarray) -> None:
        programs.wrote()
        if self.direct is not None:
            self.direct[...] = values[self.inside].view(self.direct.dtype)
        elif not self.empty:
            pointers, mask = self._pointers()
            handle = TensorHandle(values, pointers.get_element_ty())
            stock.interpreter_builder.create_masked_store(pointers, handle, mask, None, None)

    def update(self, kind: str, values: np.ndarray) -> None:
        """Atomically, by "ADD", "MIN" and so on."""
        pointers, mask = self._pointers()
        element = pointers.get_element_ty()
        prefix = "F" if element.is_floating() else "U" if element.is_int_unsigned() else ""
        operations = stock._ir.ATOMIC_OP
        operation = getattr(operations, prefix + kind, getattr(operations, kind, None))
        if operation is None:
            raise NotInterpreted(f"Gluon's async_atomic_{kind.lower()} is not interpreted")
        lanes = mask if isinstance(mask, TensorHandle) else TensorHandle(mask, stock.tl.int1)
        order, scope = stock._ir.MEM_SEMANTIC.RELAXED, stock._ir.MEM_SYNC_SCOPE.GPU
        handle = TensorHandle(values, element)
        stock.interpreter_builder.create_atomic_rmw(operation, pointers, handle, lanes, order, scope)


class _Fetched:
    """What was read for shared memory and has not arrived there."""

    def __init__(self, memory: Memory, values: np.ndarray, event: Event) -> None:
        self.memory, self.values, self.event = memory, values, event

    def arrive(self) -> None:
        self.memory.data[...] = self.values.reshape(self.memory.data.shape)


class _CopyOut:
    """A copy out of shared memory that has been begun."""

    def __init__(self, tile: _Tile, memory: Memory, access: Access, update: str | None) -> None:
        self.tile, self.memory, self.access, self.update, self.done = tile, memory, access, update, False

    def leave(self) -> None:
        if self.done:
            return
        self.done = True
        values = np.array(self.memory.data).reshape(self.tile.shape)
        if self.update is None:
            self.tile.write(values)
        else:
            self.tile.update(self.update, values)


class Product(TensorHandle):
    """The accumulator of a warpgroup_mma that has been begun; its numbers are there when it was waited for."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], line: str, compute: Callable[[], np.ndarray]) -> None:
        self.dtype, self.attr, self.line, self.compute = dtype, {"shape": shape}, line, compute
        self.result: np.ndarray | None = None

    def __getattr__(self, name: str) -> NoReturn:
        if name == "data":
            raise KernelError(f"the product that {self.line} began is used before warpgroup_mma_wait has waited for it")
        raise AttributeError(name)

    def form(self) -> np.ndarray:
        if self.result is None:
            self.result = self.compute()
        return self.result


def _numbers(handle: TensorHandle) -> np.ndarray:
    """Of an accumulator, which may be one of a product before this one."""
    return handle.form() if isinstance(handle, Product) and "data" not in vars(handle) else handle.data


def _known(handle: Any) -> bool:
    """Whether the compiler was given an optional operand."""
    return handle is not None and not isinstance(handle, ir.value)


def _true(handle: TensorHandle) -> bool:
    return bool(handle.data.item())


class Engines:
    """Gluon's operations, as methods of the interpreter's builder. `rest` is what later versions of Triton pass: hints
    that change no value, and what concerns clusters of blocks."""

    # --- shared memory

    def create_local_alloc(self, ty, value=None):
        memory = allocated(ty.element_ty, tuple(ty.shape), ty.layout, programs.line())
        if value is not None:
            self.create_local_store(memory, value)
        return memory

    def create_local_dealloc(self, memory):
        pass

    def create_local_load(self, ty, memory):
        here = strand()
        memory.read(here.access("load"), here.clock)
        return TensorHandle(np.array(memory.data), memory.dtype)

    def create_local_store(self, memory, value):
        here = strand()
        memory.write(here.access("store"), here.clock)
        if value.data.shape != memory.data.shape:
            raise KernelError(f"a tile of shape {value.data.shape} for shared memory of shape {memory.data.shape}")
        memory.data[...] = value.data

    def create_local_gather(self, ty, memory, indices, axis):
        here = strand()
        memory.read(here.access("load"), here.clock)
        return TensorHandle(memory.data[_elements(memory, indices, axis)], memory.dtype)

    def create_local_scatter(self, memory, values, indices, axis):
        here = strand()
        memory.write(here.access("store"), here.clock)
        memory.data[_elements(memory, indices, axis)] = values.data

    def create_local_atomic_scatter_rmw(self, op, memory, values, indices, mask, axis):
        here = strand()
        memory.write(here.access("store"), here.clock)
        combine = _UPDATES[op.name.removeprefix("F").removeprefix("U")]
        found = np.zeros(values.data.shape, memory.data.dtype)
        elements = _elements(memory, indices, axis)
        for lane in np.ndindex(values.data.shape):
            if mask is None or mask.data[lane]:
                element = tuple(each[lane] for each in elements)
                found[lane] = memory.data[element]
                memory.data[element] = combine(found[lane], values.data[lane])
        return TensorHandle(found, memory.dtype)

    def create_memdesc_index(self, ty, memory, index):
        return memory.index(int(index.data.item()))

    def create_memdesc_subslice(self, ty, memory, offsets):
        return memory.sliced(offsets, tuple(ty.shape))

    def create_memdesc_reinterpret(self, ty, memory):
        return memory.reinterpreted(ty.element_ty, tuple(ty.shape), ty.layout)

    # --- barriers

    def create_mbarrier_init(self, memory, count):
        barriers = memory.allocation.barriers
        first = memory.allocation.line
        barriers[_address(memory)] = Barrier(f"the mbarrier {len(barriers)} that {first} allocates", count)

    def create_mbarrier_inval(self, memory):
        _barrier(memory)
        del memory.allocation.barriers[_address(memory)]

    def create_mbarrier_expect(self, memory, size, pred, *rest):
        if _true(pred):
            barrier = _barrier(memory)
            barrier.expect(int(size))
            barrier.arrive(strand().release())

    def create_mbarrier_arrive(self, memory, count, pred, *rest):
        if _true(pred):
            _barrier(memory).arrive(strand().release(), int(count))

    def create_mbarrier_wait(self, memory, phase, pred, deps):
        if not _true(pred):
            return
        barrier, parity, here = _barrier(memory), int(phase.data.item()), strand()
        if parity not in (0, 1):
            raise KernelError(f"mbarrier.wait: a phase is 0 or 1, not {parity}")
        programs.wait(
            lambda: barrier.passed(parity),
            lambda: f"for phase {parity} of {barrier.name}, which lacks {barrier.lacks()}",
        )
        here.acquire(barrier.released)

    def create_fence_async_shared(self, cluster=False):
        here = strand()
        joined(here.fenced, here.clock)

    def create_barrier(self):
        pass

    def create_fence_mbarrier_init_release_cluster(self):
        pass

    def create_cluster_arrive(self, relaxed=False):
        pass

    def create_cluster_wait(self):
        pass

    # --- copies

    def create_make_tensor_descriptor(self, base, *rest):
        if not isinstance(base, TensorHandle):  # Gluon's begins with the type
            ty, base, shape, strides, padding = base, *rest
            block, signed = list(ty.block_type.shape), ty.block_type.element_ty.is_int_signed()
            made = stock_make_tensor_descriptor(self, base, shape, strides, block, signed, padding)
            made.layout = ty.layout
            return made
        return stock_make_tensor_descriptor(self, base, *rest)

    def create_async_tma_copy_global_to_local(self, descriptor, at, barrier, memory, pred, multicast=False, *rest):
        if not _true(pred):
            return
        if rest and rest[0] is not None:
            raise NotInterpreted("Gluon's im2col copies are not interpreted")
        here, signal, event = strand(), _barrier(barrier), Event()
        tile = _Tile(descriptor, at, memory, "copy into shared memory")
        memory.write(here.access("copy in", event), here.clock)
        fetched = _Fetched(memory, tile.read(memory.data.dtype), event)

        def arrive():
            fetched.arrive()
            signal.receive(memory.data.nbytes, event)

        here.team.pending.append(arrive)
        if programs.prompt:
            here.team.finish_all()

    def create_async_tma_copy_local_to_global(self, descriptor, at, memory, *rest):
        _copy_out(descriptor, at, memory, None)

    def create_async_tma_reduce(self, kind, descriptor, at, memory):
        _copy_out(descriptor, at, memory, kind.name)

    def create_async_tma_store_wait(self, pending, *rest):
        here = strand()
        while len(here.stores) > pending:
            here.stores.popleft().leave()
        here.finished("copy out", len(here.stores))

    def create_async_copy_global_to_local(self, memory, pointers, mask, other, *rest):
        here, dtype = strand(), memory.data.dtype
        if not _alike(memory.dtype, pointers.get_element_ty()):
            raise KernelError(f"async_copy: shared memory of {memory.dtype}, pointers to {pointers.get_element_ty()}")
        event = here.began("cp.async")
        memory.write(here.access("cp.async", event), here.clock)
        zeros = TensorHandle(np.zeros(pointers.data.shape, dtype), memory.dtype)
        values = self.create_masked_load(pointers, mask if _known(mask) else None, zeros, None, None, False).data
        here.copies.append(_Fetched(memory, values, event))
        if programs.prompt:
            here.copies[-1].arrive()

    def create_async_commit_group(self):
        here = strand()
        here.groups.append(here.copies)
        here.copies = []

    def create_async_wait_group(self, pending):
        here = strand()
        while len(here.groups) > pending:
            for each in here.groups.popleft():
                each.arrive()
                here.clock[each.event.key] = int(each.event.number)

    def create_async_copy_mbarrier_arrive(self, memory, increment_count):
        here, signal = strand(), _barrier(memory)
        copies = [each for group in (*here.groups, here.copies) for each in group]
        if increment_count:
            signal.left += 1

        known = here.release()
        known[0][here.number, "cp.async"] = here.begun["cp.async"]

        def arrive():
            for each in copies:
                each.arrive()
            signal.arrive(known, 1 if increment_count else 32 * here.warps)

        here.team.pending.append(arrive)
        if programs.prompt:
            here.team.finish_all()

    # --- products

    def create_warpgroup_mma(self, a, b, acc, use_acc, precision, max_num_imprecise_acc, is_async):
        here = strand()
        operands = []
        event = here.began("product")
        access = here.access("product", event)
        for operand in (a, b):
            if isinstance(operand, Memory):
                operand.read(access, here.clock, here.fenced)
            operands.append(operand)
        _check_product(a, b, acc)
        keep = _true(use_acc)
        dtype = acc.dtype.scalar

        def compute():
            left, right = (TensorHandle(each.data, each.dtype.scalar) for each in operands)
            total = _numbers(acc) if keep else np.zeros((a.data.shape[0], b.data.shape[1]), stock._get_np_dtype(dtype))
            return self.create_dot(left, right, TensorHandle(total, dtype), precision, max_num_imprecise_acc).data

        product = Product(dtype, (a.data.shape[0], b.data.shape[1]), access.line, compute)
        here.products.append(product)
        if programs.prompt:
            product.form()
        if not is_async:
            self.create_warpgroup_mma_wait([], 0)
        return product

    def create_warpgroup_mma_wait(self, handles, pending):
        here = strand()
        while len(here.products) > pending:
            product = here.products.popleft()
            product.data = product.form()
            product.compute = None  # and with it what it multiplied
        here.finished("product", len(here.products))
        return handles


def _copy_out(descriptor: Any, at: list[TensorHandle], memory: Memory, update: str | None) -> None:
    here = strand()
    tile = _Tile(descriptor, at, memory, "copy out of shared memory", stores=True)
    tile.check()
    access = here.access("copy out", here.began("copy out"))
    memory.read(access, here.clock, here.fenced)
    copy = _CopyOut(tile, memory, access, update)
    here.stores.append(copy)
    here.team.pending.append(copy.leave)
    if programs.prompt:
        here.team.finish_all()


_UPDATES: dict[str, Callable[..., Any]] = {
    "ADD": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "XCHG": lambda old, new: new,
}


def _elements(memory: Memory, indices: TensorHandle, axis: int) -> tuple[np.ndarray, ...]:
    """The element of `memory` for each lane of `indices`."""
    chosen = indices.data
    if ((chosen < 0) | (chosen >= memory.data.shape[axis])).any():
        raise KernelError(f"an index of shared memory lies outside of its {memory.data.shape[axis]} elements")
    if any(i != axis and n > size for i, (n, size) in enumerate(zip(chosen.shape, memory.data.shape, strict=True))):
        raise KernelError(f"indices of shape {chosen.shape} for shared memory of shape {memory.data.shape}")
    found = list(np.indices(chosen.shape, sparse=True))
    found[axis] = chosen
    return tuple(np.broadcast_arrays(*found))


def _check_product(a: Any, b: Any, acc: Any) -> None:
    if not isinstance(b, Memory):
        raise KernelError("warpgroup_mma: b has to lie in shared memory")
    shape = a.data.shape, b.data.shape
    rows, columns = _shape(acc)
    if len(shape[0]) != 2 or shape[0][1] != shape[1][0] or (shape[0][0], shape[1][1]) != (rows, columns):
        raise KernelError(f"warpgroup_mma: {shape[0]} by {shape[1]} does not give ({rows}, {columns})")
    left, right = a.dtype.scalar, b.dtype.scalar
    if left != right and not (left.is_fp8() and right.is_fp8()):
        raise KernelError(f"warpgroup_mma: operands of {left} and {right}")
    if rows % 64:
        raise KernelError(f"warpgroup_mma: {rows} rows are no multiple of 64")


def _shape(handle: TensorHandle) -> tuple[int, int]:
    return handle.attr["shape"] if isinstance(handle, Product) else handle.data.shape


stock_make_tensor_descriptor = InterpreterBuilder.create_make_tensor_descriptor


def install() -> None:
    """Teach the interpreter's builder Gluon's operations."""
    for name, member in vars(Engines).items():
        if name.startswith("create_") and not hasattr(InterpreterBuilder, name):
            setattr(InterpreterBuilder, name, member)
    InterpreterBuilder.create_make_tensor_descriptor = Engines.create_make_tensor_descriptor
