"""Arguments of a launch, the memory they reach, and every access to it."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from touchstone import backends
from touchstone.backends.triton.runtime.interpreter import programs
from touchstone.backends.triton.runtime.interpreter.numerics import BF16
from touchstone.backends.triton.runtime.interpreter.registry import KernelError, OutOfBounds, repair
from touchstone.backends.triton.runtime.interpreter.undefined import masked_value


@repair("arguments", "float arguments are float32, bools int1, wide integers int64, as in a compiled kernel")
def _arguments() -> None:
    original = stock._implicit_cvt
    integers = ((-(2**31), 2**31, tl.int32), (-(2**63), 2**63, tl.int64), (0, 2**64, tl.uint64))

    def implicit_cvt(arg):
        if isinstance(arg, bool):
            return tl.tensor(TensorHandle(np.array([arg]), tl.int1), tl.int1)
        if isinstance(arg, int):
            for low, high, ty in integers:
                if low <= arg < high:
                    return tl.tensor(TensorHandle(np.array([arg], stock._get_np_dtype(ty)), ty), ty)
        if isinstance(arg, float):
            return tl.tensor(TensorHandle(np.array([arg], np.float32), tl.float32), tl.float32)
        return original(arg)

    stock._implicit_cvt = implicit_cvt


class _Region:
    """The bytes from the first to the last element that a tensor argument reaches."""

    __slots__ = ("end", "item", "name", "shape", "start", "storage", "strides", "tensor", "views")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name, self.tensor, self.item = name, tensor, tensor.element_size()
        self.shape, self.strides = tuple(tensor.shape), tensor.stride()
        self.start = self.end = tensor.data_ptr()
        if tensor.numel():
            reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
            self.end = self.start + (reach + 1) * self.item
        self.storage = tensor.untyped_storage().data_ptr()
        self.views: dict[int, np.ndarray] = {}

    def view(self, size: int) -> np.ndarray:
        """The region as a flat array of words of `size` bytes."""
        if size not in self.views:
            count = (self.end - self.start) // size
            memory = (ctypes.c_ubyte * (count * size)).from_address(self.start)
            self.views[size] = np.frombuffer(memory, dtype=f"u{size}")
        return self.views[size]

    def __str__(self) -> str:
        last = (self.end - self.start) // self.item - 1
        reach = f"elements 0 to {last}" if last >= 0 else "no elements"
        return f"{self.name}, which has {reach} (shape {self.shape}, strides {self.strides})"


def element(region: _Region | None, address: int) -> str:
    """An element of an argument by its index ("y[3, 5]"), where the argument's strides tell one apart."""
    if region is None:
        return f"address {address:#x}"
    rest, index = (address - region.start) // region.item, [0] * len(region.shape)
    offset = rest
    for axis in sorted(range(len(index)), key=lambda axis: -region.strides[axis]):
        if region.strides[axis] > 0 and region.shape[axis] > 1:
            index[axis], rest = divmod(rest, region.strides[axis])
    if rest == 0 and all(0 <= i < n for i, n in zip(index, region.shape, strict=True)):
        return f"{region.name}[{', '.join(map(str, index))}]"
    return f"{region.name} at element offset {offset}"


class _Launch:
    """The launch under way: the argument being converted and the regions of all tensor arguments so far."""

    def __init__(self) -> None:
        self.argument = ""
        self.regions: list[_Region] = []

    def reached(self) -> list[backends.Reached]:
        return [backends.Reached(each.start, each.end - each.start, each.tensor) for each in self.regions]


_launches: list[_Launch] = []


def check_box(start: list[int], item: int, what: str, stores: bool) -> None:
    """Raise KernelError where the copy engine stops with an illegal instruction (seen on an H200): at a box that begins
    at no 16 bytes of a row, and at one stored that begins before its tensor, which one loaded may."""
    if start[-1] * item % 16:
        raise KernelError(f"{what}: the last coordinate, {start[-1]}, is no multiple of 16 bytes")
    if stores and min(start) < 0:
        raise KernelError(f"{what}: the copy engine stores to no negative coordinates, as {min(start)} is")


@repair("descriptors", "a box that the copy engine of sm_90 does not take raises KernelError")
def _descriptors() -> None:
    load, store = InterpreterBuilder.create_descriptor_load, InterpreterBuilder.create_descriptor_store

    def check(desc, indices, what, stores=False):
        item = desc.base.get_element_ty().primitive_bitwidth // 8
        check_box([int(each.data.item()) for each in indices], item, what, stores)

    def create_descriptor_load(self, desc, indices, *args, **kwargs):
        check(desc, indices, "load of a descriptor's block")
        return load(self, desc, indices, *args, **kwargs)

    def create_descriptor_store(self, desc, value, indices):
        check(desc, indices, "store of a descriptor's block", stores=True)
        return store(self, desc, value, indices)

    InterpreterBuilder.create_descriptor_load = create_descriptor_load
    InterpreterBuilder.create_descriptor_store = create_descriptor_store


@repair("bounds", "an active lane outside the tensor that its pointer came from raises OutOfBounds")
def _bounds() -> None:
    convert = stock._implicit_cvt

    def implicit_cvt(arg):
        made = convert(arg)
        if _launches and hasattr(arg, "data_ptr"):
            tensor = stock._unwrap_tensor(arg)
            if isinstance(tensor, torch.Tensor):
                region = _Region(_launches[-1].argument, tensor)
                _launches[-1].regions.append(region)
                made.handle.attr["region"] = region
        return made

    stock._implicit_cvt = implicit_cvt
    for name in ("splat", "unsplat", "broadcast", "expand_dims", "reshape", "trans", "addptr", "bitcast"):
        _keep_region(f"create_{name}")

    select = InterpreterBuilder.create_select

    def create_select(self, condition, left, right):
        made = select(self, condition, left, right)
        if left.attr.get("region") is right.attr.get("region") is not None:
            made.attr["region"] = left.attr["region"]
        return made

    InterpreterBuilder.create_select = create_select

    materialize = stock.TensorDescHandle.materialize_pointers

    def materialize_pointers(self, offsets):
        pointers, mask = materialize(self, offsets)
        if "region" in self.base.attr:
            pointers.attr["region"] = self.base.attr["region"]
        return pointers, mask

    stock.TensorDescHandle.materialize_pointers = materialize_pointers


def _keep_region(name: str) -> None:
    """Make an operation on a pointer pass on which argument it was derived from."""
    original = getattr(InterpreterBuilder, name)

    def operation(self, *args, **kwargs):
        made = original(self, *args, **kwargs)
        for arg in args:
            if type(arg) is TensorHandle:
                if "region" in arg.attr:
                    made.attr["region"] = arg.attr["region"]
                break  # the pointer is the first of the operands
        return made

    setattr(InterpreterBuilder, name, operation)


@repair("memory", "loads, stores and atomics in place, through NumPy where the argument is known; bfloat16 atomics")
def _memory() -> None:
    def masked_load(self, ptrs, mask, other, *rest, **policy):
        dtype = stock._get_np_dtype(ptrs.get_element_ty())
        mask = _lanes(mask, ptrs.data.shape)
        if other is not None:
            fill = other.data
        else:
            fill = np.zeros((), dtype) if mask is None else masked_value(dtype)
        volatile = is_volatile(rest, policy)
        polls = (volatile or ptrs.data.size == 1) and (mask is None or mask.any())
        if polls:
            programs.about_to_read(_first(ptrs), volatile)
        loaded = _load(ptrs, mask, fill, dtype)
        if polls:
            _note_read(ptrs, loaded, lambda: _load(ptrs, mask, fill, dtype))
        return TensorHandle(loaded, ptrs.get_element_ty())

    def masked_store(self, ptrs, value, mask, *rest, **policy):
        programs.wrote()
        dtype = stock._get_np_dtype(ptrs.get_element_ty())
        _store(ptrs, _lanes(mask, ptrs.data.shape), value.data.astype(dtype, copy=False))

    def load(self, ptr, *policy):
        return self.create_masked_load(ptr, None, None, *policy)

    def store(self, ptr, value, *policy):
        self.create_masked_store(ptr, value, None, *policy)

    def atomic_rmw(self, op, ptr, val, mask, sem, scope):
        lanes = _lanes(mask, ptr.data.shape)
        _region(ptr, lanes, val.data.dtype.itemsize, "atomic")
        dtype, exchange = val.data.dtype, op == stock._ir.ATOMIC_OP.XCHG
        if dtype == BF16:
            value = np.broadcast_to(val.data, ptr.data.shape)
            return atomic(ptr, lanes, lambda: TensorHandle(_bfloat16_rmw(op, ptr, value, lanes), val.dtype.scalar))
        if exchange and dtype.kind == "f":  # of which the native code exchanges integers only
            bits = TensorHandle(val.data.view(f"u{dtype.itemsize}"), tl.uint32 if dtype.itemsize == 4 else tl.uint64)

            def update():
                before = original_rmw(self, op, ptr, bits, mask, sem, scope)
                return TensorHandle(before.data.view(dtype), val.dtype.scalar)

            return atomic(ptr, lanes, update)
        return atomic(ptr, lanes, lambda: original_rmw(self, op, ptr, val, mask, sem, scope))

    def atomic_cas(self, ptr, cmp, val, sem, scope):
        _region(ptr, None, val.data.dtype.itemsize, "atomic")
        return atomic(ptr, None, lambda: original_cas(self, ptr, cmp, val, sem, scope))

    def atomic(ptr, lanes, update):
        """An update of one element that leaves it as it is counts as a read: a lock not taken, a counter looked at."""
        if ptr.data.size > 1 or lanes is not None:
            programs.wrote()
            return update()
        programs.about_to_read(_first(ptr), eager=True)
        previous = update()
        dtype = previous.data.dtype
        now = _load(ptr, None, previous.data, dtype)
        if now.tobytes() == previous.data.tobytes():
            _note_read(ptr, now, lambda: _load(ptr, None, previous.data, dtype))
        else:
            programs.wrote()
        return previous

    original_rmw, original_cas = InterpreterBuilder.create_atomic_rmw, InterpreterBuilder.create_atomic_cas
    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store
    InterpreterBuilder.create_load, InterpreterBuilder.create_store = load, store
    InterpreterBuilder.create_atomic_rmw, InterpreterBuilder.create_atomic_cas = atomic_rmw, atomic_cas


def is_volatile(rest: tuple, policy: dict[str, Any]) -> bool:
    """Whether a load is volatile, by the arguments that follow its `other`: it is the last one of every version."""
    return bool(policy.get("is_volatile", rest[-1] if rest else False))


def _first(ptrs: TensorHandle) -> int:
    return int(ptrs.data.reshape(-1)[0])


def _note_read(ptrs: TensorHandle, found: np.ndarray, again: Callable[[], np.ndarray]) -> None:
    address = _first(ptrs)
    programs.has_read(
        address, found.tobytes(), lambda: again().tobytes(), lambda: element(ptrs.attr.get("region"), address)
    )


def _lanes(mask: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """The active lanes as a bool array, None where all are; Triton passes a handle or (block loads of 3.7) an array."""
    if mask is None:
        return None
    lanes = np.asarray(mask if isinstance(mask, np.ndarray) else mask.data, np.bool_)
    if lanes.all():
        return None
    return lanes if lanes.shape == shape else np.broadcast_to(lanes, shape)


def _region(ptrs: TensorHandle, lanes: np.ndarray | None, size: int, what: str) -> _Region | None:
    """The region that every active lane lies in whole; None where there is no active lane or no one region is known.

    A lane outside the argument that its pointer was derived from is in bounds if it lies in another argument of the
    same storage. Raises OutOfBounds.
    """
    region = ptrs.attr.get("region")
    addresses = ptrs.data
    if region is None and what != "load":
        for told in backends.strayed:
            told(addresses if lanes is None else addresses[lanes])
    if region is None or not addresses.size:
        return None
    low, high = int(addresses.min()), int(addresses.max())
    if region.start <= low and high + size <= region.end:
        return region
    if lanes is not None:
        active = addresses[lanes]
        if not active.size:
            return None
        low, high = int(active.min()), int(active.max())
        if region.start <= low and high + size <= region.end:
            return region
    outside = np.ones(addresses.shape, bool) if lanes is None else lanes.copy()
    for other in _launches[-1].regions if _launches else [region]:
        if other.storage == region.storage:
            outside &= (addresses < other.start) | (addresses + np.uint64(size) > other.end)
    if not outside.any():
        return None
    lane = tuple(int(i) for i in np.argwhere(outside)[0])
    offset = (int(addresses[lane]) - region.start) // region.item
    count = int(outside.sum())
    more = f"; {count - 1} more lanes are outside" if count > 1 else ""
    raise OutOfBounds(f"{what} of lane {list(lane)} at element offset {offset} of {region}{more}")


def _words(ptrs: TensorHandle, region: _Region | None, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """A region as words and the index of every lane's word; None where NumPy cannot address the lanes."""
    if region is None:
        return None
    offsets = (ptrs.data - np.uint64(region.start)).view(np.int64)
    if size > 1:
        if size != region.item and (offsets & (size - 1)).any():
            return None
        offsets = offsets >> (size.bit_length() - 1)
    return region.view(size), offsets


def _load(ptrs: TensorHandle, lanes: np.ndarray | None, fill: np.ndarray, dtype: np.dtype) -> np.ndarray:
    bits = np.dtype(f"u{dtype.itemsize}")
    words = _words(ptrs, _region(ptrs, lanes, dtype.itemsize, "load"), dtype.itemsize)
    if words is not None:
        memory, index = words
        if lanes is None:
            return memory.take(index).view(dtype)
        loaded = memory.take(np.where(lanes, index, 0)).view(dtype)
        np.copyto(loaded, fill.astype(dtype, copy=False), where=~lanes)
        return loaded
    shape = ptrs.data.shape
    fill = np.ascontiguousarray(np.broadcast_to(fill.astype(dtype, copy=False), shape)).view(bits)
    active = np.ones(shape, bool) if lanes is None else lanes
    return stock._interpreter.load(ptrs.data, active, fill, bits).view(dtype)


def _store(ptrs: TensorHandle, lanes: np.ndarray | None, value: np.ndarray) -> None:
    size = value.dtype.itemsize
    words = _words(ptrs, _region(ptrs, lanes, size, "store"), size)
    shape = ptrs.data.shape
    bits = np.ascontiguousarray(np.broadcast_to(value, shape)).view(f"u{size}")
    if words is None:
        stock._interpreter.store(ptrs.data, bits, np.ones(shape, bool) if lanes is None else lanes)
        return
    memory, index = words
    if lanes is None:
        memory[index] = bits
    else:
        memory[index[lanes]] = bits[lanes]


def _bfloat16_rmw(op, ptrs: TensorHandle, value: np.ndarray, lanes: np.ndarray | None) -> np.ndarray:
    """An atomic on bfloat16, which the native code lacks: one lane after another, as the hardware serialises them."""
    add = op in (stock._ir.ATOMIC_OP.ADD, stock._ir.ATOMIC_OP.FADD)
    if not add and op != stock._ir.ATOMIC_OP.XCHG:
        raise KernelError(f"{op} is not available for bfloat16")
    previous = np.zeros(value.shape, BF16)
    for lane in np.ndindex(value.shape):
        if lanes is None or lanes[lane]:
            here = TensorHandle(ptrs.data[lane].reshape(1), ptrs.dtype, ptrs.attr)
            old = _load(here, None, np.zeros(1, BF16), BF16)
            _store(here, None, old + value[lane] if add else value[lane].reshape(1))
            previous[lane] = old[0]
    return previous
