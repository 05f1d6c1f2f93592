"""Sums, maxima or minima along an axis of a matrix.

warp: a warp to an output, its lanes along the reduced axis [luitjens2014]
block: a block to an output: long rows have more threads, and fewer outputs fill the GPU [luitjens2014]
partials: a thread to an output, neighbours to neighbours, as columns want it; several blocks share the reduced axis,
  and another launch combines what they found [apex2018]
vectorised: a thread loads 16 bytes of neighbours at a time, of one output or of as many outputs; a short row has a
  warp, a long one a block [luitjens2013]
"""

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.combining import block_combine, combine, neutral, warp_combine
from touchstone.backends.numba.lib.reductions import block_grid, checked_grid, thread_grid, warp_grid
from touchstone.backends.numba.lib.vector_io import lanes_of, load16, unpacked
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.lib.vector_sums import resident_blocks
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.reduce_rows import checked
from touchstone.backends.variants import variant

_LANES, _AT_ONCE = 8, 4  # elements of a vector at most; vectors that a thread has on their way
_WORDS = 4 * _AT_ONCE


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


@variant()
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


@cuda.jit
def _vectorised(x, y, function):
    # A block is a warp to each of some outputs, or all its threads to one. Rows are whole vectors.
    words, length, each = cuda.local.array(_WORDS, uint32), uint64(lanes_of(x)), uint64(x.shape[1])
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    value, step = neutral(function), uint64(cuda.blockDim.x) * length
    i = uint64(cuda.threadIdx.x) * length
    while i < each:
        for k in range(_AT_ONCE):  # on their way together
            load16(x, (row, i + uint64(k) * step), words, 4 * k)
        for k in range(_AT_ONCE):
            if i + uint64(k) * step < each:
                for lane in range(lanes_of(x)):
                    value = combine(value, unpacked(words, k * lanes_of(x) + lane, x), function)
        i += uint64(_AT_ONCE) * step
    value = warp_combine(value, function) if cuda.blockDim.x == 32 else block_combine(value, function)
    if cuda.threadIdx.x == 0:
        y[row] = value


@cuda.jit
def _vectorised_partials(x, results, function):
    # As _partials for x (each, outputs), with as many outputs to a lane as 16 bytes have.
    held = cuda.shared.array((8, _LANES, 32), float32)
    words, values = cuda.local.array(_WORDS, uint32), cuda.local.array(_LANES, float32)
    lane, across, part = uint32(cuda.threadIdx.x), uint32(cuda.threadIdx.y), uint64(cuda.blockIdx.y)
    col, each = (uint64(cuda.blockIdx.x) * uint64(32) + uint64(lane)) * uint64(lanes_of(x)), uint64(x.shape[0])
    length = (each + uint64(cuda.gridDim.y) - uint64(1)) // uint64(cuda.gridDim.y)
    i, end = part * length + uint64(across), min(each, (part + uint64(1)) * length)
    for k in range(lanes_of(x)):
        values[k] = neutral(function)
    while i < end:
        for k in range(_AT_ONCE):
            if i + uint64(8 * k) < end:
                load16(x, (i + uint64(8 * k), col), words, 4 * k)
        for k in range(_AT_ONCE):
            if i + uint64(8 * k) < end:
                for n in range(lanes_of(x)):
                    values[n] = combine(values[n], unpacked(words, k * lanes_of(x) + n, x), function)
        i += uint64(8 * _AT_ONCE)
    for k in range(lanes_of(x)):
        held[across, uint32(k), lane] = values[k]
    cuda.syncthreads()  # the first row of threads reads what all have found
    if across > uint32(0) or col >= uint64(x.shape[1]):
        return
    for k in range(lanes_of(x)):
        value = values[k]
        for other in range(1, 8):
            value = combine(value, held[uint32(other), uint32(k), lane], function)
        results[part, col + uint64(k)] = value


@variant(needs="shuffles")
def vectorised(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,).

    Rows that are not whole 16-byte vectors are read an element at a time. Source: [luitjens2013].
    """
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    length = 16 // x.element_size()
    along, across = are_rows_aligned(seen), are_rows_aligned(seen.t())
    if not outputs or not (along or across):
        return (warp if seen.stride(1) == 1 else partials)(x, axis=axis, function=function)
    y = x.new_empty(outputs)
    if along:
        long = each > 32 * 8 * length
        grid, block = (outputs, 256) if long else (-(-outputs // 8), (32, 8))
        launch(_vectorised, checked_grid(grid), block, seen, y, np.int32(number))
        return y
    columns = -(-outputs // (32 * length))
    parts = max(1, min(-(-each // 64), -(-resident_blocks(x, 4) // columns), 65535))
    results = x.new_empty((parts, outputs), dtype=torch.float32)
    launch(_vectorised_partials, (columns, parts), (32, 8), seen.t(), results, np.int32(number))
    launch(_finish, *thread_grid(outputs), results, y, np.int32(number))
    return y
