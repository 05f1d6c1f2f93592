"""Gradient of softmax from its result: dx = y * (dy - sum(y * dy)).

naive: one thread per row, two passes; neighbouring threads read addresses one row apart [oneflow2021]
warp: one warp per row, which its lanes hold in registers; the sum by shuffles, so y and dy are read once [oneflow2021]
block: one block per row of any length, two passes; the warps' sums meet in shared memory [oneflow2021]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: two reads, one write [oneflow2021]
"""

import functools

import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    at_most,
    block_grid,
    block_sum,
    row_sum,
    thread_grid,
    warp_grid,
    warp_sum,
    wide_jit,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, in_vectors, load_row, store_values
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32


@cuda.jit
def _naive(y, dy, dx):
    row = uint64(cuda.grid(1))
    if row >= uint64(y.shape[0]):
        return
    cols = uint64(y.shape[1])
    delta = float32(0)
    col = uint64(0)
    while col < cols:
        delta += float32(y[row, col]) * float32(dy[row, col])
        col += uint64(1)
    col = uint64(0)
    while col < cols:
        dx[row, col] = float32(y[row, col]) * (float32(dy[row, col]) - delta)
        col += uint64(1)


@variant()
def naive(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols), any number of columns; y and dy are read twice. Source: [oneflow2021]."""
    rows, _ = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if dx.numel():
        launch(_naive, *thread_grid(rows), y, dy, dx)
    return dx


@cuda.jit
def _warp(y, dy, dx):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    weight = cuda.local.array(_HELD, float32)
    gradient = cuda.local.array(_HELD, float32)
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(y.shape[0]):
        return  # a whole warp
    cols = uint32(y.shape[1])
    delta = float32(0)
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        weight[i] = float32(y[row, col]) if col < cols else float32(0)
        gradient[i] = float32(dy[row, col]) if col < cols else float32(0)
        delta += weight[i] * gradient[i]
    delta = warp_sum(delta)

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            dx[row, col] = weight[i] * (gradient[i] - delta)


@variant(needs="shuffles")
def warp(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols). Declines over 1024 columns, what one warp holds. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    at_most(cols, WARP_COLS, "warp")
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if dx.numel():
        launch(_warp, *warp_grid(rows), y, dy, dx)
    return dx


@cuda.jit
def _block(y, dy, dx):
    row, cols = uint64(cuda.blockIdx.x), uint64(y.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    delta = float32(0)
    col = first
    while col < cols:
        delta += float32(y[row, col]) * float32(dy[row, col])
        col += step
    delta = block_sum(delta)

    col = first
    while col < cols:
        dx[row, col] = float32(y[row, col]) * (float32(dy[row, col]) - delta)
        col += step


@variant(needs="shuffles")
def block(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols), any number of columns; y and dy are read twice. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    if dx.numel():
        launch(_block, *block_grid(rows, cols), y, dy, dx)
    return dx


@functools.cache
def _vectorised(vectors, wide):
    words = 4 * vectors

    @wide_jit
    def kernel(y, dy, dx):
        # A row in the registers of blockDim.x threads. Rows of one warp share a block, blockDim.y of them.
        weight = cuda.local.array(words, uint32)
        gradient = cuda.local.array(words, uint32)
        out = cuda.local.array(LANES, float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(y.shape[0]):
            return  # a whole warp
        length = lanes_of(y)
        load_row(y, row, weight, wide)
        load_row(dy, row, gradient, wide)

        delta = float32(0)
        for i in range(vectors * length):
            delta += unpacked(weight, i, y) * unpacked(gradient, i, y)
        delta = row_sum(delta)

        for r in range(vectors):
            for i in range(length):
                at = r * length + i
                out[i] = unpacked(weight, at, y) * (unpacked(gradient, at, y) - delta)
            store_values(out, dx, row, r, wide)

    return kernel


@variant(needs="shuffles")
def vectorised(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols).

    Declines more than 32768 columns, 16384 of float32: the registers of one block. Operands that are not contiguous and
    aligned to 16 bytes are moved an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    extent, held = in_vectors(rows, cols, y, dy, dx)
    if dx.numel():
        launch(_vectorised(*held), *extent, y, dy, dx)
    return dx
