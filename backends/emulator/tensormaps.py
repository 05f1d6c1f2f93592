"""An array as Hopper's copy engine takes it: what cuTensorMapEncodeTiled makes on a GPU's host, for the emulator."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

BYTES = 128  # of a CUtensorMap
_MAGIC = 0x70614D726F736E65  # copies.h: TENSOR_MAP
# engine.h: ts_number
_NUMBERS = {
    "float16": 0, "bfloat16": 1, "float32": 3, "float64": 4, "uint8": 8, "int8": 8, "float8_e4m3fn": 8,
    "float8_e5m2": 8, "int32": 9, "uint32": 10, "int64": 11, "uint64": 12, "int16": 14, "uint16": 14,
}  # fmt: skip


class _Encoded(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("strides", ctypes.c_uint64 * 4),
        ("sizes", ctypes.c_uint32 * 5),
        ("box", ctypes.c_uint16 * 5),
        ("steps", ctypes.c_uint8 * 5),
        *((name, ctypes.c_uint8) for name in ("rank", "type", "item", "swizzle", "fill")),
    ]


class TensorMap:
    """The argument for a kernel's parameter `const __grid_constant__ CUtensorMap`, or any structure of 128 bytes that
    stands for one."""

    def __init__(
        self, array: Any, box: Sequence[int], swizzle: int = 0, steps: Sequence[int] | None = None, fill: str = "zeros"
    ) -> None:
        """`array`: a tensor or NumPy array of one to five axes, the last one contiguous; `box`: its elements along each
        axis that are moved at a time, in the array's order; `swizzle`: 0, 32, 64 or 128 bytes; `steps`: along each axis
        from one element that is taken to the next; `fill`: "zeros" or "nan", for what is read outside of the array.
        Raises ValueError for what the driver declines."""
        self.array, self.box, self.swizzle = array, tuple(map(int, box)), swizzle
        torch = hasattr(array, "data_ptr")
        shape = tuple(array.shape)
        self._type = str(array.dtype).removeprefix("torch.")
        self._item = array.itemsize
        self._strides = tuple(s * self._item for s in array.stride()) if torch else tuple(array.strides)
        self._steps = tuple(steps or [1] * len(shape))
        self._fill = fill
        if self._type not in _NUMBERS:
            raise TypeError(f"array: expected numbers that the copy engine knows, got {self._type}")
        if not 1 <= len(shape) <= 5 or not all(1 <= n < 1 << 32 for n in shape):
            raise ValueError(f"array: expected one to five axes of at least one element, got shape {shape}")
        if len(self.box) != len(shape) or len(self._steps) != len(shape):
            raise ValueError(f"box, steps: expected a number for each of {len(shape)} axes, got {box}, {steps}")
        if not all(1 <= n <= 256 for n in self.box) or not all(1 <= n <= 8 for n in self._steps):
            raise ValueError(f"box, steps: expected 1 to 256 elements, 1 to 8 apart, got {self.box}, {self._steps}")
        if swizzle not in (0, 32, 64, 128):
            raise ValueError(f"swizzle: expected 0, 32, 64 or 128 bytes, got {swizzle!r}")
        if fill not in ("zeros", "nan"):
            raise ValueError(f"fill: expected zeros or nan, got {fill!r}")
        inner, taken = self.box[-1] * self._item, len(range(0, self.box[-1], self._steps[-1])) * self._item
        if inner % 16 or taken % 16 or inner > (swizzle or inner):
            raise ValueError(
                f"box: expected rows of a multiple of 16 bytes, at most the swizzle's {swizzle}, got {inner} bytes"
            )
        if shape[-1] > 1 and self._strides[-1] != self._item:
            raise ValueError(f"array: expected its last axis contiguous, got strides of {self._strides} bytes")
        pairs = zip(shape[:-1], self._strides[:-1], strict=True)
        if any(n > 1 and (s <= 0 or s % 16) for n, s in pairs):
            raise ValueError(f"array: expected strides of whole 16 bytes, got {self._strides} bytes")

    def encoded(self, start: int) -> np.ndarray:
        """The bytes of it, with the array at `start`; they begin at a multiple of 64, as a parameter does."""
        if start % 16:
            raise ValueError(f"array: expected it to begin at a multiple of 16 bytes, got {start % 16} bytes off")
        rank, shape = len(self.box), tuple(self.array.shape)
        made = _Encoded(_MAGIC, start)
        for axis in range(rank):
            made.sizes[axis], made.box[axis] = shape[rank - 1 - axis], self.box[rank - 1 - axis]
            made.steps[axis] = self._steps[rank - 1 - axis]
            if axis:
                made.strides[axis - 1] = max(0, self._strides[rank - 1 - axis])
        made.rank, made.type, made.item = rank, _NUMBERS[self._type], self._item
        made.swizzle, made.fill = self.swizzle, int(self._fill == "nan")
        return aligned(bytes(made).ljust(BYTES, b"\0"))


def aligned(data: bytes) -> np.ndarray:
    """A copy of `data` that begins at a multiple of 64."""
    space = np.zeros(len(data) + 64, np.uint8)
    start = -space.ctypes.data % 64
    space[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return space[start : start + len(data)]
