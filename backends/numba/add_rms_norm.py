"""Residual add and RMS norm in one kernel: h = x + residual, y = rms_norm(h), which saves writing and rereading h.

naive: one thread per row; h is written and read back, rounded, by the second pass [dao2024]
warp: one warp per row, which its lanes hold in registers; y comes from h before its rounding [dao2024]
block: one block per row of any length; h is written and read back, rounded, by the second pass [dao2024]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: two reads, two writes [oneflow2021]
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    at_most,
    block_grid,
    block_sum,
    for_rows,
    row_sum,
    thread_grid,
    warp_grid,
    warp_sum,
    wide_jit,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, first_col, in_vectors, load_row, store_values
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._add_norms import empty_outputs
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32

# weight comes as (rows, cols), every row the same. h is read back by the thread that wrote it: no barrier is needed for
# that.


@cuda.jit
def _naive(x, residual, weight, y, h, eps):
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols = uint64(x.shape[1])
    square = float32(0)
    col = uint64(0)
    while col < cols:
        h[row, col] = float32(x[row, col]) + float32(residual[row, col])
        value = float32(h[row, col])
        square += value * value
        col += uint64(1)
    rstd = float32(1) / math.sqrt(square / float32(x.shape[1]) + eps)

    col = uint64(0)
    while col < cols:
        y[row, col] = float32(h[row, col]) * rstd * float32(weight[row, col])
        col += uint64(1)


@variant()
def naive(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols), any number of columns. Source: [dao2024]."""
    rows, _ = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    if y.numel():
        launch(_naive, *thread_grid(rows), x, residual, for_rows(weight, rows), y, h, np.float32(eps))
    return y, h


@cuda.jit
def _warp(x, residual, weight, y, h, eps):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    held = cuda.local.array(_HELD, float32)
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    cols = uint32(x.shape[1])
    square = float32(0)
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        held[i] = float32(x[row, col]) + float32(residual[row, col]) if col < cols else float32(0)
        square += held[i] * held[i]
    rstd = float32(1) / math.sqrt(warp_sum(square) / float32(x.shape[1]) + eps)

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            h[row, col] = held[i]
            y[row, col] = held[i] * rstd * float32(weight[row, col])


@variant(needs="shuffles")
def warp(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols).

    Declines more than 1024 columns, what one warp holds. Source: [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    at_most(cols, WARP_COLS, "warp")
    y, h = empty_outputs(x)
    if y.numel():
        launch(_warp, *warp_grid(rows), x, residual, for_rows(weight, rows), y, h, np.float32(eps))
    return y, h


@cuda.jit
def _block(x, residual, weight, y, h, eps):
    row, cols = uint64(cuda.blockIdx.x), uint64(x.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    square = float32(0)
    col = first
    while col < cols:
        h[row, col] = float32(x[row, col]) + float32(residual[row, col])
        value = float32(h[row, col])
        square += value * value
        col += step
    rstd = float32(1) / math.sqrt(block_sum(square) / float32(x.shape[1]) + eps)

    col = first
    while col < cols:
        y[row, col] = float32(h[row, col]) * rstd * float32(weight[row, col])
        col += step


@variant(needs="shuffles")
def block(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols), any number of columns.

    x, residual and h are read once. Source: [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    if y.numel():
        launch(_block, *block_grid(rows, cols), x, residual, for_rows(weight, rows), y, h, np.float32(eps))
    return y, h


@functools.cache
def _vectorised(vectors, wide):
    words = 4 * vectors

    @wide_jit
    def kernel(x, residual, weight, y, h, eps):
        # A row of h in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        held = cuda.local.array(words, uint32)
        other = cuda.local.array(words, uint32)
        scale = cuda.local.array(4, uint32)
        out = cuda.local.array(LANES, float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        length = lanes_of(x)
        load_row(x, row, held, wide)
        load_row(residual, row, other, wide)

        # The sum rounded once, as it is stored; y comes from it.
        square = float32(0)
        for r in range(vectors):
            for i in range(length):
                out[i] = unpacked(held, r * length + i, x) + unpacked(other, r * length + i, x)
            pack(out, held, 4 * r, h)
            store_vector(held, 4 * r, h, (row, first_col(r, h)), wide)
            for i in range(length):
                value = unpacked(held, r * length + i, h)
                square += value * value
        rstd = float32(1) / math.sqrt(row_sum(square) / float32(x.shape[1]) + eps)

        for r in range(vectors):
            load_vector(weight, (row, first_col(r, x)), scale, 0, wide)
            for i in range(length):
                out[i] = unpacked(held, r * length + i, h) * rstd * unpacked(scale, i, h)
            store_values(out, y, row, r, wide)

    return kernel


@variant(needs="shuffles")
def vectorised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols).

    Declines more than 32768 columns, 16384 of float32: the registers of one block. Operands that are not contiguous and
    aligned to 16 bytes are moved an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    extent, held = in_vectors(rows, cols, x, residual, weight, y, h)
    if y.numel():
        launch(_vectorised(*held), *extent, x, residual, for_rows(weight, rows), y, h, np.float32(eps))
    return y, h
