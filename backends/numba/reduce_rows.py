"""Sums, maxima or minima along an axis of a matrix.

warp: a warp to an output, its lanes along the reduced axis [luitjens2014]
block: a block to an output: long rows have more threads, and fewer outputs fill the GPU [luitjens2014]
partials: a thread to an output, neighbours to neighbours, as columns want it; several blocks share the reduced axis,
  and another launch combines what they found [apex2018]
"""

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.combining import block_combine, combine, neutral, warp_combine
from touchstone.backends.numba.lib.reductions import block_grid, thread_grid, warp_grid
from touchstone.backends.numba.lib.vector_sums import resident_blocks
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.reduce_rows import checked
from touchstone.backends.variants import variant


@cuda.jit(device=True)
def _of_row(x, row, first, step, function):
    """Over x[row, first], x[row, first + step], ..."""
    value, i = neutral(function), first
    while i < uint64(x.shape[1]):
        value = combine(value, float32(x[row, i]), function)
        i += step
    return value


@cuda.jit
def _warp(x, y, function):
    # A block is 32 lanes by some outputs, each of them over a row.
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    value = warp_combine(_of_row(x, row, uint64(cuda.threadIdx.x), uint64(32), function), function)
    if cuda.threadIdx.x == 0:
        y[row] = value


@variant(needs="shuffles")
def warp(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    y = x.new_empty(len(seen))
    if len(seen):
        launch(_warp, *warp_grid(len(seen)), seen, y, np.int32(number))
    return y


@cuda.jit
def _block(x, y, function):
    row = uint64(cuda.blockIdx.x)
    value = block_combine(_of_row(x, row, uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x), function), function)
    if cuda.threadIdx.x == 0:
        y[row] = value


@variant(needs="shuffles")
def block(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,). Declines more than 2^31 - 1 outputs. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    y = x.new_empty(len(seen))
    if len(seen):
        launch(_block, *block_grid(*seen.shape), seen, y, np.int32(number))
    return y


@cuda.jit
def _partials(x, results, function):
    # A block is 32 outputs by 8 threads that share each; block (·, part) leaves its results in results[part].
    held = cuda.shared.array((8, 32), float32)
    lane, across, part = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint64(cuda.blockIdx.y)
    row, each = uint64(cuda.blockIdx.x) * uint64(32) + uint64(lane), uint64(x.shape[1])
    length = (each + uint64(cuda.gridDim.y) - uint64(1)) // uint64(cuda.gridDim.y)
    value, i, end = neutral(function), part * length + uint64(across), min(each, (part + uint64(1)) * length)
    if row < uint64(x.shape[0]):
        while i < end:
            value = combine(value, float32(x[row, i]), function)
            i += uint64(8)
    held[across, lane] = value
    cuda.syncthreads()  # the first row of threads reads what all have found
    if across > uint32(0) or row >= uint64(x.shape[0]):
        return
    for other in range(1, 8):
        value = combine(value, held[uint32(other), lane], function)
    results[part, row] = value


@cuda.jit
def _finish(results, y, function):
    # A thread to an output.
    output = uint64(cuda.grid(1))
    if output >= uint64(y.shape[0]):
        return
    value, part = neutral(function), uint64(0)
    while part < uint64(results.shape[0]):
        value = combine(value, results[part, output], function)
        part += uint64(1)
    y[output] = value


def partials(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [apex2018]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        across = -(-outputs // 32)
        parts = max(1, min(-(-each // 64), -(-resident_blocks(x) // across), 65535))
        results = x.new_empty((parts, outputs), dtype=torch.float32)
        launch(_partials, (across, parts), (32, 8), seen, results, np.int32(number))
        launch(_finish, *thread_grid(outputs), results, y, np.int32(number))
    return y
