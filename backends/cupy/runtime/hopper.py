"""Matrices as Hopper's copy engine (TMA) takes them: the host's side of hopper.cuh."""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from touchstone.backends import Unsupported, emulator

# of cuda.h: CUtensorMapDataType, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
_SWIZZLE_128B, _PROMOTION_256B = 3, 3


class TensorMap(NamedTuple):
    """The argument for a kernel's parameter `const __grid_constant__ TensorMap`.

    `tensor` has two to five axes, of which the last is contiguous and the others have strides of whole 16 bytes (see
    `taken` and `along_last`). The copy engine moves a `box` at a time, of as many axes, rows of 128 bytes, swizzled in
    shared memory; what is outside of the tensor reads as zero.
    """

    tensor: torch.Tensor
    box: tuple[int, ...]

    def encoded(self) -> np.ndarray:
        """The 128 bytes that the driver makes of it."""
        x = self.tensor
        pitches, extent = [], -(-x.shape[-1] * x.element_size() // 16) * 16
        for n, stride in zip(x.shape[-2::-1], x.stride()[-2::-1], strict=True):
            # the stride of an axis of one element says nothing, but the driver looks at it
            pitches.append(stride * x.element_size() if n > 1 else extent)
            extent = max(extent, n * pitches[-1])
        return _encoded(_TYPES[x.dtype], x.data_ptr(), tuple(x.shape[::-1]), tuple(pitches), self.box[::-1])

    def emulated(self) -> emulator.TensorMap:
        """The same for the emulator."""
        return emulator.TensorMap(self.tensor, self.box, swizzle=128)


def taken(x: torch.Tensor) -> bool:
    """Whether the copy engine takes the last axis of `x` as the contiguous one."""
    return (x.stride(-1) == 1 or x.shape[-1] == 1) and all(
        n == 1 or (s > 0 and s * x.element_size() % 16 == 0) for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True)
    )


def aligned(name: str, x: torch.Tensor) -> None:
    """Raise Unsupported if `x` does not start at a multiple of 16 bytes."""
    if x.data_ptr() % 16:
        raise Unsupported(f"{name}: starts {x.data_ptr() % 16} bytes off; the copy engine needs 16-byte alignment")


def along_last(name: str, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The matrix `x` and True if the copy engine takes its last axis as the contiguous one, `x.t()` and False if its
    first. Raises Unsupported if neither, or if it does not start at a multiple of 16 bytes.
    """
    aligned(name, x)
    for view, last in ((x, True), (x.t(), False)):
        if taken(view):
            return view, last
    raise Unsupported(
        f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs an axis of stride 1 and the "
        "other's a positive multiple of 16 bytes"
    )


@lru_cache(maxsize=1024)
def _encoded(
    dtype: int, address: int, sizes: tuple[int, ...], pitches: tuple[int, ...], box: tuple[int, ...]
) -> np.ndarray:
    rank = len(sizes)
    space = np.zeros(192, np.uint8)
    start = -space.ctypes.data % 64
    status = _encoder()(
        space.ctypes.data + start,
        dtype,
        rank,
        address,
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*pitches),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        0,
        _SWIZZLE_128B,
        _PROMOTION_256B,
        0,
    )
    if status:
        where = f"{sizes} elements of type {dtype} at {address:#x}, {pitches} bytes apart, in boxes of {box}"
        raise RuntimeError(f"cuTensorMapEncodeTiled: error {status} for {where}")
    return space[start : start + 128].view("V128")


@lru_cache
def _encoder() -> Callable[..., int]:
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    pointer, number = ctypes.c_void_p, ctypes.c_int
    encode.argtypes = [pointer, number, ctypes.c_uint32, pointer, *[pointer] * 4, *[number] * 4]
    return encode
