"""A launch's arguments: their types, and how the lowered function takes them."""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

from touchstone.backends.emulator.arguments import Argument, extent


def as_array(value: Any) -> Any:
    """A tensor of torch on the CPU as an array that shares its memory, with bfloat16 in 16 bits; an array of the
    host's driver likewise; of `cuda.In`, `cuda.Out` and `cuda.InOut` what a kernel sees."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    hint = [kind.__name__ for kind in type(value).__mro__ if kind.__module__ == "numba.cuda.args"]
    if hint:
        inner = as_array(value.value)
        return np.array(inner) if hint[0] == "In" else inner
    described = getattr(value, "__cuda_array_interface__", None)
    if described is not None:
        return _described(value, described)
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "cpu":
        raise ValueError(f"a tensor on {value.device}; the emulator takes CPU tensors")
    value = value.detach()
    if value.dtype == torch.bfloat16:
        return BrainFloats(value.view(torch.int16).numpy())
    return value.numpy()


def _described(value: Any, described: dict[str, Any]) -> np.ndarray:
    """Memory of the host's driver as an array."""
    dtype = getattr(value, "dtype", None)
    dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(described.get("descr") or described["typestr"])
    shape, start = tuple(described["shape"]), described["data"][0]
    if not start:
        return np.empty(shape, dtype)
    strides = described.get("strides")
    if strides is None:  # so Numba also says of an array whose elements are one: stride 0
        own = getattr(value, "strides", None)
        strides = own if isinstance(own, tuple) else _contiguous(shape, dtype.itemsize)
    low = sum(min(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    memory = (ctypes.c_uint8 * (high - low + dtype.itemsize)).from_address(start + low)
    return np.ndarray(shape, dtype, memory, -low, strides)


def _contiguous(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    return tuple(item * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class BrainFloats(NamedTuple):
    """An array of bfloat16."""

    bits: np.ndarray  # int16


def type_of(value: Any) -> Any:
    """The type of Numba's that an argument has in a kernel."""
    from numba.cuda import types
    from numba.cuda.typing.typeof import Purpose, typeof

    if isinstance(value, BrainFloats):
        plain = typeof(value.bits, Purpose.argument)
        return types.Array(types.bfloat16, plain.ndim, plain.layout)
    if isinstance(value, tuple):
        return types.BaseTuple.from_types([type_of(part) for part in value], type(value))
    return typeof(value, Purpose.argument)


def allocation_at(address: int) -> np.ndarray | None:
    """The device memory of the host's driver that `address` lies in."""
    from touchstone.backends.emulator.numba import driver

    return driver.allocation_at(address) if driver.installed() else None


def _agrees(kind: Any, array: np.ndarray, name: str) -> None:
    """TypeError where a kernel compiled for arrays of `kind` would take the bytes of `array` for something else."""
    from numba.cuda.np.numpy_support import as_dtype

    try:
        expected = as_dtype(kind.dtype)
    except NotImplementedError:  # a type that NumPy does not have
        return
    same_size = expected.itemsize == array.itemsize
    alike = expected == array.dtype or (
        same_size and (expected.kind == "V" or {expected.kind, array.dtype.kind} == {*"iu"})
    )
    if not alike or array.ndim != kind.ndim:
        raise TypeError(
            f"{name}: expected an array of {expected} with {kind.ndim} axes, got one of {array.dtype} with {array.ndim}"
        )


class Packed:
    """A launch's arguments as the lowered function takes them, one cell each, and the memory they bound."""

    def __init__(self) -> None:
        self.cells: list[np.ndarray] = []
        self.regions: list[Argument] = []
        self.keep: list[Any] = []

    def cell(self, value: Any, dtype: str) -> None:
        self.cells.append(np.array(value, dtype=dtype))

    def region(self, array: np.ndarray | None, name: str) -> None:
        found = extent(array, name)
        if found and found.bytes:
            self.regions.append(found)

    def add(self, kind: Any, value: Any, name: str) -> None:
        from numba.cuda import types

        if isinstance(kind, types.Array):
            array = value.bits if isinstance(value, BrainFloats) else np.asarray(value)
            if not isinstance(value, BrainFloats):
                _agrees(kind, array, name)
            self.keep.append(array)
            self.region(array, name)
            for number in (0, 0, array.size, array.itemsize, array.ctypes.data, *array.shape, *array.strides):
                self.cell(number, "i8")
        elif isinstance(kind, types.Record):
            record = np.asarray(value)  # of an array's element the same memory
            self.keep.append(record)
            self.region(record, name)
            self.cell(record.ctypes.data, "i8")
        elif isinstance(kind, types.BaseTuple):
            for position, (part, item) in enumerate(zip(kind, value, strict=True)):
                self.add(part, item, f"{name}[{position}]")
        elif isinstance(kind, types.EnumMember):
            self.add(kind.dtype, value.value, name)
        elif isinstance(kind, (types.NPDatetime, types.NPTimedelta)):
            self.cell(np.asarray(value).view(np.int64), "i8")
        elif isinstance(kind, types.Boolean):
            self.cell(bool(value), "u1")
        elif isinstance(kind, types.Integer):
            number = int(value) & (1 << kind.bitwidth) - 1  # as C converts
            self.cells.append(np.array(number, f"u{kind.bitwidth // 8}"))
        elif isinstance(kind, types.Float):
            self.cell(value, f"f{kind.bitwidth // 8}")
        elif isinstance(kind, types.Complex):
            self.cell(value.real, f"f{kind.bitwidth // 16}")
            self.cell(value.imag, f"f{kind.bitwidth // 16}")
        elif isinstance(kind, types.CPointer):
            address = int(getattr(value, "value", value) or 0)
            self.region(allocation_at(address), name)
            self.cell(address, "u8")
        elif isinstance(kind, types.NoneType):
            self.cell(0, "i8")
        else:
            raise TypeError(f"{name}: a kernel takes no argument of type {kind}")
