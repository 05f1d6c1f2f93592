"""Gradient of softmax from its result: dx = y * (dy - sum(y * dy)).

naive: one thread per row, two passes; neighbouring threads read addresses one row apart [oneflow2021]
warp: one warp per row, which its lanes hold in registers; the sum by shuffles, so y and dy are read once [oneflow2021]
block: one block per row of any length, two passes; the warps' sums meet in shared memory [oneflow2021]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: two reads, one write [oneflow2021]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, in_registers, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols), any number of columns; y and dy are read twice. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        operands = (y, dy, dx, rows, cols, *y.stride(), *dy.stride())
        _naive.launch("softmax_backward_naive", -(-rows // 128), 128, *operands, dtype=y.dtype)
    return dx


@variant()
def warp(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols). Declines over 1024 columns, what one warp holds. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    at_most(cols, WARP_COLS, "warp")
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        strides = (*y.stride(), *dy.stride())
        _scalar.launch("softmax_backward_warp", *warp_grid(rows), y, dy, dx, rows, cols, *strides, dtype=y.dtype)
    return dx


@variant()
def block(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols), any number of columns; y and dy are read twice. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        strides = (*y.stride(), *dy.stride())
        grid = min(rows, GRID_LIMIT[0])
        _scalar.launch("softmax_backward_block", grid, threads(cols), y, dy, dx, rows, cols, *strides, dtype=y.dtype)
    return dx


@variant()
def vectorised(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    extent, definitions = in_registers(rows, cols, y, dy, dx, vectors=2)
    if dx.numel():
        strides = (*y.stride(), *dy.stride())
        _vectorised.launch(
            "softmax_backward_vectorised", *extent, y, dy, dx, rows, cols, *strides, dtype=y.dtype, **definitions
        )
    return dx
