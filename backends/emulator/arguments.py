"""A launch's arguments: checked against the kernel's parameters, packed, and bounded."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from touchstone.backends.emulator.library import Parameter


class Argument(NamedTuple):
    name: str  # "argument 2"
    start: int
    bytes: int
    item: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements


def extent(argument: Any, name: str) -> Argument | None:
    """Of a tensor or array: from its first to its last element."""
    if hasattr(argument, "data_ptr"):
        if argument.device.type != "cpu":
            raise ValueError(f"{name}: is on {argument.device}; the emulator takes CPU tensors")
        start, item = argument.data_ptr(), argument.element_size()
        shape, strides = tuple(argument.shape), tuple(argument.stride())
    elif isinstance(argument, np.ndarray):
        start, item = argument.ctypes.data, argument.itemsize
        shape, strides = argument.shape, tuple(s // item for s in argument.strides)
    else:
        return None
    if 0 in shape:
        return Argument(name, start, 0, item, shape, strides)
    low = sum(min(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    high = sum(max(0, s * (n - 1)) for n, s in zip(shape, strides, strict=True))
    return Argument(name, start + low * item, (high - low + 1) * item, item, shape, strides)


def _address(argument: Any) -> int:
    """Of the first element, which a negative stride makes not the lowest."""
    if argument is None:
        return 0
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument.ctypes.data


def pack(
    kernel: str, arguments: Sequence[Any], known: list[Parameter], names: tuple[str, ...]
) -> tuple[Any, list[Argument], list[Any]]:
    """The array of pointers that a kernel is called with, and the memory that it may use."""
    regions: list[Argument] = []
    cells: list[Any] = []
    for position, (argument, parameter) in enumerate(zip(arguments, known, strict=True)):
        name = names[position] if position < len(names) and names[position] else f"argument {position + 1}"
        kind, size = parameter.kind.decode(), parameter.bytes
        region = extent(argument, name)
        if region is not None or argument is None:
            if kind != "p":
                raise TypeError(f"{kernel}: {name}: expected a number, got {'None' if region is None else 'an array'}")
            if region and region.bytes:
                regions.append(region)
            cells.append(ctypes.c_uint64(_address(argument)))
            continue
        if kind in "iu" and isinstance(argument, (int, np.integer)):
            value = int(argument)
            low, high = (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1) if kind == "i" else (0, (1 << 8 * size) - 1)
            if not low <= value <= high:
                raise ValueError(f"{kernel}: {name}: {value} does not fit in the {size * 8}-bit parameter")
            cells.append(np.array(value, dtype=f"{kind}{size}"))
        elif kind == "f" and isinstance(argument, (int, float, np.integer, np.floating)):
            cells.append(np.array(argument, dtype=f"f{size}"))
        elif isinstance(argument, np.generic) and argument.dtype.itemsize == size:
            cells.append(np.array(argument))
        elif kind == "x" and isinstance(argument, (bytes, bytearray)) and len(argument) == size:
            cells.append(np.frombuffer(bytes(argument), dtype=np.uint8))
        else:
            expected = {"p": "a tensor, an array or None", "i": "an integer", "u": "an integer", "f": "a number"}
            raise TypeError(
                f"{kernel}: {name}: expected {expected.get(kind, f'{size} bytes')}, got {type(argument).__name__}"
            )
    pointers = (ctypes.c_void_p * max(1, len(cells)))(
        *(cell.ctypes.data if isinstance(cell, np.ndarray) else ctypes.addressof(cell) for cell in cells)
    )
    return pointers, regions, cells
