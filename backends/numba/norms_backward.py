"""What the backwards of the norms share: the grid of blocks that run at once, and sums over a block and over its warps."""

import torch
from numba import cuda, float32, uint32, uint64

from backends.numba.rows import threads, warp_sum

KEPT = 8  # columns of a row in a thread's registers: cuda.blockDim.x * i + cuda.threadIdx.x
BLOCK_COLS = KEPT * 1024


def resident(x: torch.Tensor) -> tuple[int, int]:
    """Blocks, so many that a multiprocessor runs 1024 threads at once (a few on the CPU), and the threads of each."""
    rows, cols = x.shape
    across = threads(-(-cols // KEPT), 1024)
    if x.is_cuda:
        return min(rows, torch.cuda.get_device_properties(x.device).multi_processor_count * (1024 // across)), across
    return min(rows, 3), across


@cuda.jit(device=True)
def block_sums(values, turn):
    """Make the values of a local array, at most 3, their sums over a one-dimensional block of whole warps, in every thread.

    `turn` is 0 and 1 by turns, call by call: a slow reader of one half of `partials` is not overtaken by the writers of the
    next call, and one barrier is enough.
    """
    partials = cuda.shared.array((2, 3, 32), float32)
    lane, warp = uint32(cuda.laneid), uint32(cuda.threadIdx.x // 32)
    for i in range(values.size):
        values[i] = warp_sum(values[i])
    if cuda.blockDim.x == 32:
        return
    if lane == uint32(0):
        for i in range(values.size):
            partials[uint32(turn), i, warp] = values[i]
    cuda.syncthreads()
    for i in range(values.size):
        values[i] = warp_sum(partials[uint32(turn), i, lane] if lane < uint32(cuda.blockDim.x // 32) else float32(0))


@cuda.jit(device=True)
def column_sums(values):
    """Make the values of a local array, at most 2, their sums over the warps of a block (32, n); the first warp gets them."""
    partials = cuda.shared.array((2, 32, 32), float32)
    lane = uint32(cuda.threadIdx.x)
    for i in range(values.size):
        partials[i, uint32(cuda.threadIdx.y), lane] = values[i]
    cuda.syncthreads()
    if cuda.threadIdx.y == 0:
        warp = uint64(1)
        while warp < uint64(cuda.blockDim.y):
            for i in range(values.size):
                values[i] += partials[i, warp, lane]
            warp += uint64(1)
