"""Matrices as Hopper's copy engine (TMA) takes them: the host's side of hopper.cuh."""

from functools import lru_cache
from typing import NamedTuple

import torch

from touchstone.backends import Unsupported, emulator, tensormaps

# of cuda.h: CUtensorMapDataType, CU_TENSOR_MAP_SWIZZLE_128B
_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
_SWIZZLE_128B = 3


class TensorMap(NamedTuple):
    """The argument for a kernel's parameter `const __grid_constant__ TensorMap`.

    `tensor` has two to five axes, of which the last is contiguous and the others have strides of whole 16 bytes (see
    `taken` and `along_last`). The copy engine moves a `box` at a time, of as many axes, rows of 128 bytes, swizzled in
    shared memory; what is outside of the tensor reads as zero.
    """

    tensor: torch.Tensor
    box: tuple[int, ...]

    def encoded(self) -> bytes:
        """The 128 bytes that the driver makes of it."""
        x = self.tensor
        return _encoded(x.dtype, x.data_ptr(), x.shape, x.stride(), self.box)

    def emulated(self) -> emulator.TensorMap:
        """The same for the emulator."""
        return emulator.TensorMap(self.tensor, self.box, swizzle=128)


def taken(x: torch.Tensor) -> bool:
    """Whether the copy engine takes the last axis of `x` as the contiguous one."""
    return _taken(x.shape, x.stride(), x.element_size())


@lru_cache(maxsize=1024)  # 4 us for four axes
def _taken(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> bool:
    return (strides[-1] == 1 or shape[-1] == 1) and all(
        n == 1 or (s > 0 and s * size % 16 == 0) for n, s in zip(shape[:-1], strides[:-1], strict=True)
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
    if taken(x):
        return x, True
    if taken(x.t()):
        return x.t(), False
    raise Unsupported(
        f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs an axis of stride 1 and the "
        "other's a positive multiple of 16 bytes"
    )


@lru_cache(maxsize=1024)
def _encoded(
    dtype: torch.dtype, address: int, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]
) -> bytes:
    size = dtype.itemsize
    pitches, extent = [], -(-shape[-1] * size // 16) * 16
    for n, stride in zip(shape[-2::-1], strides[-2::-1], strict=True):
        # the stride of an axis of one element says nothing, but the driver looks at it
        pitches.append(stride * size if n > 1 else extent)
        extent = max(extent, n * pitches[-1])
    how = _SWIZZLE_128B, tensormaps.PROMOTION_256B
    return tensormaps.encoded(_TYPES[dtype], address, tuple(shape[::-1]), tuple(pitches), box[::-1], *how)
