"""Softmax and its log-sum-exp, from one streaming pass for (m, l), the running max and the sum of exp(x - m).

online: one thread per row rescales l whenever m grows; a second pass writes y [milakov2018]
warp: one warp per row; every lane has its own (m, l), and shuffles merge the pairs at the end [milakov2018]
block: one block per row; the warps' pairs meet in shared memory, so a long row has many loads under way [milakov2018]
vectorised: 16-byte loads, and the row stays in registers between the passes: one read, one write [oneflow2021]
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.online import denominator, fold, log_sum, row_merge, shift, warp_merge
from touchstone.backends.numba.lib.reductions import block_grid, thread_grid, warp_grid, wide_jit
from touchstone.backends.numba.lib.vector_io import lanes_of, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, in_vectors, inside, load_row, store_values
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.online_softmax import empty_outputs
from touchstone.backends.variants import variant

_LOW = np.float32(-math.inf)


@cuda.jit
def _online(x, y, lse):
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols = uint64(x.shape[1])
    m, l = _LOW, float32(0)
    col = uint64(0)
    while col < cols:
        m, l = fold(m, l, float32(x[row, col]))
        col += uint64(1)
    lse[row] = log_sum(m, l)

    m, l = shift(m), denominator(m, l)
    col = uint64(0)
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += uint64(1)


@variant()
def online(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, _, y, lse = empty_outputs(x)
    if y.numel():
        launch(_online, *thread_grid(rows), x, y, lse)
    return y, lse


@cuda.jit
def _warp(x, y, lse):
    # A block is 32 lanes by some rows.
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    first, cols = uint64(cuda.threadIdx.x), uint64(x.shape[1])
    m, l = _LOW, float32(0)
    col = first
    while col < cols:
        m, l = fold(m, l, float32(x[row, col]))
        col += uint64(32)
    m, l = warp_merge(m, l)
    if cuda.threadIdx.x == 0:
        lse[row] = log_sum(m, l)

    m, l = shift(m), denominator(m, l)
    col = first
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += uint64(32)


@variant(needs="shuffles")
def warp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, _, y, lse = empty_outputs(x)
    if y.numel():
        launch(_warp, *warp_grid(rows), x, y, lse)
    return y, lse


@cuda.jit
def _block(x, y, lse):
    row, cols = uint64(cuda.blockIdx.x), uint64(x.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    m, l = _LOW, float32(0)
    col = first
    while col < cols:
        m, l = fold(m, l, float32(x[row, col]))
        col += step
    m, l = row_merge(m, l)
    if cuda.threadIdx.x == 0:
        lse[row] = log_sum(m, l)

    m, l = shift(m), denominator(m, l)
    col = first
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += step


@variant(needs="shuffles")
def block(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    rows, cols, y, lse = empty_outputs(x)
    if y.numel():
        launch(_block, *block_grid(rows, cols), x, y, lse)
    return y, lse


@functools.cache
def _vectorised(vectors, wide):
    words = 4 * vectors

    @wide_jit
    def kernel(x, y, lse):
        # A row in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        packed = cuda.local.array(words, uint32)
        held = cuda.local.array((vectors, LANES), float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        length = lanes_of(x)
        load_row(x, row, packed, wide)

        # A vector at a time, so that l is rescaled once for all its columns.
        m, l = _LOW, float32(0)
        for r in range(vectors):
            above = m
            for i in range(length):
                held[r, i] = unpacked(packed, r * length + i, x) if inside(r, i, x, wide) else _LOW
                above = max(above, held[r, i])
            l *= math.exp(m - shift(above))
            for i in range(length):
                l += math.exp(held[r, i] - shift(above))
            m = above
        m, l = row_merge(m, l)
        if cuda.threadIdx.x == 0:
            lse[row] = log_sum(m, l)

        m, inverse = shift(m), float32(1) / denominator(m, l)
        for r in range(vectors):
            for i in range(length):
                held[r, i] = math.exp(held[r, i] - m) * inverse
            store_values(held[r], y, row, r, wide)

    return kernel


@variant(needs="shuffles")
def vectorised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log.

    Declines more than 32768 columns, 16384 of float32: the registers of one block. Rows that are not contiguous and
    aligned to 16 bytes are moved an element at a time. Source: [oneflow2021].
    """
    rows, cols, y, lse = empty_outputs(x)
    extent, held = in_vectors(rows, cols, x, y)
    if y.numel():
        launch(_vectorised(*held), *extent, x, y, lse)
    return y, lse
