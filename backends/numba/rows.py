"""What row-wise kernels share: grids and blocks by the way a row is held, and reductions over a warp and a block."""

import math

import numpy as np
from numba import cuda, float32

from backends import Unsupported

WARP_COLS = 1024  # what the lanes of one warp hold, 32 columns each
GRID_LIMIT = 2**31 - 1
_LOW = np.float32(-math.inf)


def at_most(cols: int, limit: int, what: str) -> None:
    """Decline more than `limit` columns, what one `what` holds."""
    if cols > limit:
        raise Unsupported(f"{cols} columns; one {what} holds {limit}")


def blocks(rows: int) -> int:
    """A grid of one block a row; declines more rows than a grid has blocks."""
    if rows > GRID_LIMIT:
        raise Unsupported(f"{rows} rows; a grid has {GRID_LIMIT} blocks")
    return rows


def warp_grid(rows: int) -> tuple[int, tuple[int, int]]:
    """Grid and block of one warp a row, four rows a block."""
    return blocks(-(-rows // 4)), (32, 4)


def threads(cols: int, most: int = 256) -> int:
    """Threads of a block for a row of `cols` columns: whole warps, at most `most`."""
    return max(32, min(most, -(-cols // 32) * 32))


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
    value = warp_max(value)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    value = partial[cuda.laneid] if cuda.laneid < cuda.blockDim.x // 32 else _LOW
    value = warp_max(value)
    cuda.syncthreads()  # before the next call writes `partial`
    return value


@cuda.jit(device=True)
def block_sum(value):
    """The sum over a one-dimensional block of whole warps, in every thread."""
    partial = cuda.shared.array(32, float32)
    value = warp_sum(value)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    value = partial[cuda.laneid] if cuda.laneid < cuda.blockDim.x // 32 else float32(0)
    value = warp_sum(value)
    cuda.syncthreads()
    return value
