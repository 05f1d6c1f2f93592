"""What row-wise kernels share: grids and blocks by the way a row is held, and reductions over a warp and a block.

Loops count in unsigned integers of one width: an index that may be negative costs a comparison and an addition each
time, and a comparison of int64 with uint64 is made in float64.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import cuda, float32, uint32

from touchstone.backends import Unsupported, numba

WARP_COLS = 1024  # what the lanes of one warp hold, 32 columns each
GRID_LIMIT = 2**31 - 1
_LOW = np.float32(-math.inf)


def at_most(cols: int, limit: int, what: str) -> None:
    """Decline more than `limit` columns, what one `what` holds."""
    if cols > limit:
        raise Unsupported(f"{cols} columns; one {what} holds {limit}")


def checked_grid(blocks: int) -> int:
    """`blocks` itself; declines more than a grid has."""
    if blocks > GRID_LIMIT:
        raise Unsupported(f"{blocks} rows; a grid has {GRID_LIMIT} blocks")
    return blocks


def thread_grid(rows: int) -> tuple[int, int]:
    """Grid and block of one thread per row."""
    return checked_grid(-(-rows // 32)), 32


def warp_grid(rows: int) -> tuple[int, tuple[int, int]]:
    """Grid and block of one warp per row, four rows per block."""
    return checked_grid(-(-rows // 4)), (32, 4)


def block_grid(rows: int, cols: int, most: int = 256) -> tuple[int, int]:
    """Grid and block of one block per row of `cols` columns, with at most `most` threads."""
    return checked_grid(rows), block_threads(cols, most)


def block_threads(cols: int, most: int = 256) -> int:
    """Threads of a block for a row of `cols` columns: whole warps, at most `most`."""
    return max(32, min(most, -(-cols // 32) * 32))


def for_rows(vector: torch.Tensor, rows: int) -> torch.Tensor:
    """A view (rows, cols) of a vector that every row shares: kernels are compiled once for all its layouts."""
    return vector.expand(max(rows, 2), -1)


def scale_and_shift(
    weight: torch.Tensor, bias: torch.Tensor | None, rows: int
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """weight and bias for_rows, and whether there is a bias; without one any memory will do."""
    return for_rows(weight, rows), for_rows(weight if bias is None else bias, rows), bias is not None


def _bounded(bounds: int | tuple[int, int]) -> Any:
    """cuda.jit for so many threads, with registers for so many blocks; Numba's own simulator knows no such option."""
    return cuda.jit if numba.simulated() else cuda.jit(launch_bounds=bounds)


wide_jit = _bounded(1024)  # whose registers must do
crowded_jit = _bounded((1024, 2))
deep_jit = _bounded(512)  # which have twice the registers,
paired_jit = _bounded((512, 2))  # or as many and a second block beside theirs


@cuda.jit(device=True)
def warp_max(value):
    """The largest float32 of the 32 lanes, in every lane; NaN gives way to a number."""
    step = 16
    while step > 0:
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, step))
        step //= 2
    return value


@cuda.jit(device=True)
def warp_sum(value):
    """The sum of the 32 lanes, in every lane."""
    step = 16
    while step > 0:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, step)
        step //= 2
    return value


@cuda.jit(device=True)
def block_max(value):
    """The largest float32 of a one-dimensional block of whole warps, in every thread."""
    partial = cuda.shared.array(32, float32)
    lane, warp, warps = uint32(cuda.laneid), uint32(cuda.threadIdx.x // 32), uint32(cuda.blockDim.x // 32)
    value = warp_max(value)
    if lane == uint32(0):
        partial[warp] = value
    cuda.syncthreads()
    value = warp_max(partial[lane] if lane < warps else _LOW)
    cuda.syncthreads()  # before the next call writes `partial`
    return value


@cuda.jit(device=True)
def block_sum(value):
    """The sum over a one-dimensional block of whole warps, in every thread."""
    partial = cuda.shared.array(32, float32)
    lane, warp, warps = uint32(cuda.laneid), uint32(cuda.threadIdx.x // 32), uint32(cuda.blockDim.x // 32)
    value = warp_sum(value)
    if lane == uint32(0):
        partial[warp] = value
    cuda.syncthreads()
    value = warp_sum(partial[lane] if lane < warps else float32(0))
    cuda.syncthreads()
    return value


@cuda.jit(device=True)
def row_max(value):
    """Over the blockDim.x threads of a row. Rows of one warp share a block along y and meet no barrier."""
    return warp_max(value) if cuda.blockDim.x == 32 else block_max(value)


@cuda.jit(device=True)
def row_sum(value):
    """Over the blockDim.x threads of a row. Rows of one warp share a block along y and meet no barrier."""
    return warp_sum(value) if cuda.blockDim.x == 32 else block_sum(value)
