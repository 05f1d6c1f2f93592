"""Softmax over the last axis: y = exp(x - max x) / sum exp(x - max x).

naive: one thread per row, three passes over x; neighbouring threads read addresses one row apart [milakov2018]
warp: one warp per row, which its lanes hold in registers; max and sum by shuffles, so x is read once [oneflow2021]
block: one block per row of any length, three coalesced passes; the warps' results meet in shared memory [oneflow2021]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: one read, one write; powers of two in
  place
    of exp [oneflow2021]
halfregs: the row stays in its own 16 bits and is exponentiated twice, so that more rows are under way [nvidia2025]
online: max and sum in one pass by rescaling the sum whenever the max grows, so any row is read twice
  [milakov2018]
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.online import denominator, fold, row_merge, shift
from touchstone.backends.numba.lib.ptx import exp2
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    at_most,
    block_grid,
    block_max,
    block_sum,
    crowded_jit,
    deep_jit,
    row_max,
    row_sum,
    thread_grid,
    warp_grid,
    warp_max,
    warp_sum,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, unpacked
from touchstone.backends.numba.lib.vector_rows import (
    LANES,
    in_halves,
    in_vectors,
    inside,
    keep_packed,
    load_row,
    store_values,
)
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import HALF, variant

_HELD = WARP_COLS // 32
_LOW = np.float32(-math.inf)
_LOG2E = np.float32(math.log2(math.e))


@cuda.jit
def _naive(x, y):
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols = uint64(x.shape[1])
    # max keeps a number beside a NaN and exp does not: a NaN, a +inf (inf - inf) and a row of -inf all reach the sum as
    # NaN.
    m, l = _LOW, float32(0)
    col = uint64(0)
    while col < cols:
        m = max(m, float32(x[row, col]))
        col += uint64(1)
    col = uint64(0)
    while col < cols:
        l += math.exp(float32(x[row, col]) - m)
        col += uint64(1)
    col = uint64(0)
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += uint64(1)


@variant()
def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: [milakov2018]."""
    rows, _ = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_naive, *thread_grid(rows), x, y)
    return y


@cuda.jit
def _warp(x, y):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return
    held = cuda.local.array(_HELD, float32)
    cols = uint32(x.shape[1])
    m = _LOW
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        held[i] = float32(x[row, col]) if col < cols else _LOW
        m = max(m, held[i])
    m = warp_max(m)

    l = float32(0)
    for i in range(_HELD):
        held[i] = math.exp(held[i] - m)
        l += held[i]
    l = warp_sum(l)

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            y[row, col] = held[i] / l


@variant(needs="shuffles")
def warp(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols). Declines more than 1024 columns, what one warp holds. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols", x=x)
    at_most(cols, WARP_COLS, "warp")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_warp, *warp_grid(rows), x, y)
    return y


@cuda.jit
def _block(x, y):
    row, cols = uint64(cuda.blockIdx.x), uint64(x.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    m, l = _LOW, float32(0)
    col = first
    while col < cols:
        m = max(m, float32(x[row, col]))
        col += step
    m = block_max(m)

    col = first
    while col < cols:
        l += math.exp(float32(x[row, col]) - m)
        col += step
    l = block_sum(l)

    col = first
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += step


@variant(needs="shuffles")
def block(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read three times. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_block, *block_grid(rows, cols), x, y)
    return y


@functools.cache
def _vectorised(vectors, wide):
    words = 4 * vectors

    @deep_jit
    def kernel(x, y):
        # A row in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        packed = cuda.local.array(words, uint32)
        held = cuda.local.array((vectors, LANES), float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        length = lanes_of(x)
        load_row(x, row, packed, wide)

        m = _LOW
        for r in range(vectors):
            for i in range(length):
                held[r, i] = unpacked(packed, r * length + i, x) if inside(r, i, x, wide) else _LOW
                m = max(m, held[r, i])
        m = row_max(m)

        l = float32(0)
        for r in range(vectors):
            for i in range(length):
                held[r, i] = exp2((held[r, i] - m) * _LOG2E)
                l += held[r, i]
        # 1 / l cannot overflow: the largest column adds 1.
        inverse = float32(1) / row_sum(l)

        for r in range(vectors):
            for i in range(length):
                held[r, i] *= inverse
            store_values(held[r], y, row, r, wide)

    return kernel


@variant(needs="shuffles")
def vectorised(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols).

    Declines more than 32768 columns, 16384 of float32: the registers of one block. Rows that are not contiguous and
    aligned to 16 bytes are moved an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    extent, held = in_vectors(rows, cols, x, y, most=512)
    if y.numel():
        launch(_vectorised(*held), *extent, x, y)
    return y


@functools.cache
def _halfregs(vectors, wide):
    words = 4 * vectors

    @crowded_jit
    def kernel(x, y):
        # A row in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        packed = cuda.local.array(words, uint32)
        out = cuda.local.array(LANES, float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        load_row(x, row, packed, wide)

        m = _LOW
        for r in range(vectors):
            for i in range(LANES):
                m = max(m, unpacked(packed, r * LANES + i, x) if inside(r, i, x, wide) else _LOW)
        m = row_max(m)

        keep_packed(packed)
        l = float32(0)
        for r in range(vectors):
            for i in range(LANES):
                value = unpacked(packed, r * LANES + i, x) if inside(r, i, x, wide) else _LOW
                l += exp2((value - m) * _LOG2E)
        # 1 / l cannot overflow: the largest column adds 1.
        inverse = float32(1) / row_sum(l)

        keep_packed(packed)
        for r in range(vectors):
            for i in range(LANES):
                out[i] = exp2((unpacked(packed, r * LANES + i, x) - m) * _LOG2E) * inverse
            store_values(out, y, row, r, wide)

    return kernel


@variant(needs="shuffles", dtypes=HALF)
def halfregs(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols).

    At 12288 and 20480 columns on an H200, bfloat16, 0.78 and 0.80 of a copy's rate, where `vectorised` has
    0.77 and 0.61.
    Declines float32 and more than 32768 columns: the registers of one block. Rows that are not contiguous and aligned
    to 16 bytes are moved an element at a time. Source: [oneflow2021], [nvidia2025].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    extent, held = in_halves(rows, cols, x, y)
    if y.numel():
        launch(_halfregs(*held), *extent, x, y)
    return y


@cuda.jit
def _online(x, y):
    row, cols = uint64(cuda.blockIdx.x), uint64(x.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    m, l = _LOW, float32(0)
    col = first
    while col < cols:
        m, l = fold(m, l, float32(x[row, col]))
        col += step
    m, l = row_merge(m, l)

    m, l = shift(m), denominator(m, l)
    col = first
    while col < cols:
        y[row, col] = math.exp(float32(x[row, col]) - m) / l
        col += step


@variant(needs="shuffles")
def online(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (rows, cols), any number of columns; x is read twice. Source: [milakov2018]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        launch(_online, *block_grid(rows, cols), x, y)
    return y
