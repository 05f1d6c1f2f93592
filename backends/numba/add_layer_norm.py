"""Residual add and layer norm in one kernel: h = x + residual, y = layer_norm(h), which saves writing and rereading h.

naive: one thread per row; h is written and read back, rounded, by the two later passes [dao2024]
warp: one warp per row, which its lanes hold in registers; y comes from h before its rounding [baetal2016] [dao2024]
block: one block per row of any length; h is written and read back, rounded, by the two later passes [dao2024]
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
    row_sum,
    scale_and_shift,
    thread_grid,
    warp_grid,
    warp_sum,
    wide_jit,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, first_col, in_vectors, inside, load_row, store_values
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._add_norms import empty_outputs
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32

# weight and bias come as (rows, cols), every row the same; where there is no bias, `biased` is False. h is read back by
# the thread that wrote it: no barrier is needed for that.


@cuda.jit
def _naive(x, residual, weight, bias, biased, y, h, eps):
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols, count = uint64(x.shape[1]), float32(x.shape[1])
    mean, square = float32(0), float32(0)
    col = uint64(0)
    while col < cols:
        h[row, col] = float32(x[row, col]) + float32(residual[row, col])
        mean += float32(h[row, col])
        col += uint64(1)
    mean /= count

    col = uint64(0)
    while col < cols:
        centred = float32(h[row, col]) - mean
        square += centred * centred
        col += uint64(1)
    rstd = float32(1) / math.sqrt(square / count + eps)

    col = uint64(0)
    while col < cols:
        shift = float32(bias[row, col]) if biased else float32(0)
        y[row, col] = (float32(h[row, col]) - mean) * rstd * float32(weight[row, col]) + shift
        col += uint64(1)


@variant()
def naive(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols), any number of columns.

    Source: [baetal2016], [dao2024].
    """
    rows, _ = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    if y.numel():
        launch(_naive, *thread_grid(rows), x, residual, *scale_and_shift(weight, bias, rows), y, h, np.float32(eps))
    return y, h


@cuda.jit
def _warp(x, residual, weight, bias, biased, y, h, eps):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    held = cuda.local.array(_HELD, float32)
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    cols, count = uint32(x.shape[1]), float32(x.shape[1])
    total, square = float32(0), float32(0)
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        held[i] = float32(x[row, col]) + float32(residual[row, col]) if col < cols else float32(0)
        total += held[i]
    mean = warp_sum(total) / count

    for i in range(_HELD):
        centred = held[i] - mean
        if uint32(i * 32 + cuda.threadIdx.x) < cols:
            square += centred * centred
    rstd = float32(1) / math.sqrt(warp_sum(square) / count + eps)

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            h[row, col] = held[i]
            shift = float32(bias[row, col]) if biased else float32(0)
            y[row, col] = (held[i] - mean) * rstd * float32(weight[row, col]) + shift


@variant(needs="shuffles")
def warp(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols).

    Declines more than 1024 columns, what one warp holds. Source: [baetal2016], [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    at_most(cols, WARP_COLS, "warp")
    y, h = empty_outputs(x)
    if y.numel():
        launch(_warp, *warp_grid(rows), x, residual, *scale_and_shift(weight, bias, rows), y, h, np.float32(eps))
    return y, h


@cuda.jit
def _block(x, residual, weight, bias, biased, y, h, eps):
    row, cols, count = uint64(cuda.blockIdx.x), uint64(x.shape[1]), float32(x.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    total, square = float32(0), float32(0)
    col = first
    while col < cols:
        h[row, col] = float32(x[row, col]) + float32(residual[row, col])
        total += float32(h[row, col])
        col += step
    mean = block_sum(total) / count

    col = first
    while col < cols:
        centred = float32(h[row, col]) - mean
        square += centred * centred
        col += step
    rstd = float32(1) / math.sqrt(block_sum(square) / count + eps)

    col = first
    while col < cols:
        shift = float32(bias[row, col]) if biased else float32(0)
        y[row, col] = (float32(h[row, col]) - mean) * rstd * float32(weight[row, col]) + shift
        col += step


@variant(needs="shuffles")
def block(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols), any number of columns.

    x and residual are read once, h twice. Source: [baetal2016], [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    if y.numel():
        launch(
            _block, *block_grid(rows, cols), x, residual, *scale_and_shift(weight, bias, rows), y, h, np.float32(eps)
        )
    return y, h


@functools.cache
def _vectorised(vectors, wide):
    words = 4 * vectors

    @wide_jit
    def kernel(x, residual, weight, bias, biased, y, h, eps):
        # A row of h in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        held = cuda.local.array(words, uint32)
        other = cuda.local.array(words, uint32)
        scale = cuda.local.array(4, uint32)
        shift = cuda.local.array(4, uint32)
        out = cuda.local.array(LANES, float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        length, count = lanes_of(x), float32(x.shape[1])
        load_row(x, row, held, wide)
        load_row(residual, row, other, wide)

        # The sum rounded once, as it is stored; y comes from it.
        total, square = float32(0), float32(0)
        for r in range(vectors):
            for i in range(length):
                out[i] = unpacked(held, r * length + i, x) + unpacked(other, r * length + i, x)
            pack(out, held, 4 * r, h)
            store_vector(held, 4 * r, h, (row, first_col(r, h)), wide)
            for i in range(length):
                total += unpacked(held, r * length + i, h)
        mean = row_sum(total) / count

        for r in range(vectors):
            for i in range(length):
                centred = unpacked(held, r * length + i, h) - mean
                square += centred * centred if inside(r, i, x, wide) else float32(0)
        rstd = float32(1) / math.sqrt(row_sum(square) / count + eps)

        for r in range(vectors):
            load_vector(weight, (row, first_col(r, x)), scale, 0, wide)
            if biased:
                load_vector(bias, (row, first_col(r, x)), shift, 0, wide)
            for i in range(length):
                out[i] = (unpacked(held, r * length + i, h) - mean) * rstd * unpacked(scale, i, h)
                if biased:
                    out[i] += unpacked(shift, i, h)
            store_values(out, y, row, r, wide)

    return kernel


@variant(needs="shuffles")
def vectorised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols).

    Declines more than 32768 columns, 16384 of float32: the registers of one block. Operands that are not contiguous and
    aligned to 16 bytes are moved an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    extent, held = in_vectors(rows, cols, x, residual, weight, bias, y, h)
    if y.numel():
        launch(_vectorised(*held), *extent, x, residual, *scale_and_shift(weight, bias, rows), y, h, np.float32(eps))
    return y, h
