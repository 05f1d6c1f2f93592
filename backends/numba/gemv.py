"""Matrix-vector product: y = a·x.

warp: a warp to a row, whose lanes add their products by shuffles [liu2021]
vectorised: a lane loads 16 bytes of a row and of x at a time [liu2021]
splitk: several blocks share a row, and another launch adds their sums: few rows fill the GPU too [hoque2024]
"""

import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import (
    block_sum,
    block_threads,
    checked_grid,
    thread_grid,
    warp_grid,
    warp_sum,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.lib.vector_sums import resident_blocks
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant


@cuda.jit
def _warp(a, x, y):
    # A block is 32 lanes by some rows.
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(a.shape[0]):
        return
    total, k, K = float32(0), uint64(cuda.threadIdx.x), uint64(a.shape[1])
    while k < K:
        total += float32(a[row, k]) * float32(x[k])
        k += uint64(32)
    total = warp_sum(total)
    if cuda.threadIdx.x == 0:
        y[row] = total


@variant(needs="shuffles")
def warp(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides. Source: [liu2021]."""
    M, _ = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        launch(_warp, *warp_grid(M), a, x, y)
    return y


@cuda.jit
def _vectorised(a, x, y, wide):
    # As `_warp`, but a lane takes a vector at a time, in one access where `wide`; zeros beyond the last column.
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(a.shape[0]):
        return
    left, right = cuda.local.array(4, uint32), cuda.local.array(4, uint32)
    length, K = uint64(lanes_of(a)), uint64(a.shape[1])
    total, k = float32(0), uint64(cuda.threadIdx.x) * length
    while k < K:
        load_vector(a, (row, k), left, 0, wide)
        load_vector(x, k, right, 0, wide)
        for i in range(lanes_of(a)):
            total += unpacked(left, i, a) * unpacked(right, i, x)
        k += uint64(32) * length
    total = warp_sum(total)
    if cuda.threadIdx.x == 0:
        y[row] = total


@variant(needs="shuffles")
def vectorised(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,); any sizes and strides, but only whole rows on 16 bytes load as vectors [liu2021]."""
    M, _ = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        launch(_vectorised, *warp_grid(M), a, x, y, are_rows_aligned(a) and are_rows_aligned(x))
    return y


@cuda.jit
def _splitk(a, x, partials):
    # Block (row, split) leaves the sum of its columns in partials[split, row].
    row, split, K = uint64(cuda.blockIdx.x), uint64(cuda.blockIdx.y), uint64(a.shape[1])
    each = (K + uint64(cuda.gridDim.y) - uint64(1)) // uint64(cuda.gridDim.y)
    end = min(K, (split + uint64(1)) * each)
    total, k = float32(0), split * each + uint64(cuda.threadIdx.x)
    while k < end:
        total += float32(a[row, k]) * float32(x[k])
        k += uint64(cuda.blockDim.x)
    total = block_sum(total)
    if cuda.threadIdx.x == 0:
        partials[split, row] = total


@cuda.jit
def _finish(partials, y):
    # A thread to a row.
    row = uint64(cuda.grid(1))
    if row >= uint64(y.shape[0]):
        return
    total, split = float32(0), uint64(0)
    while split < uint64(partials.shape[0]):
        total += partials[split, row]
        split += uint64(1)
    y[row] = total


@variant(needs="shuffles")
def splitk(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """a (M, K), x (K,) -> y (M,). Declines more than 2^31 - 1 rows, a grid's blocks. Source: [hoque2024]."""
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        # As many splits as fill the device, each of 1024 columns or more; few in the emulator.
        splits = max(1, min(-(-K // 1024), resident_blocks(a) // M, 65535))
        partials = a.new_empty((splits, M), dtype=torch.float32)
        launch(_splitk, (checked_grid(M), splits), block_threads(-(-K // splits)), a, x, partials)
        launch(_finish, *thread_grid(M), partials, y)
    return y
