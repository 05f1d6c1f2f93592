"""Residual add and RMS norm in one kernel: h = x + residual, y = rms_norm(h), which saves writing and rereading h.

naive: one thread per row; h is written and read back, rounded, by the second pass [dao2024]
warp: one warp per row, which its lanes hold in registers; y comes from h before its rounding [dao2024]
block: one block per row of any length; h is written and read back, rounded, by the second pass [dao2024]
vectorised: the block holds its row in registers and moves it 16 bytes at a time: two reads, two writes [oneflow2021]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.norms import threads
from touchstone.backends.cupy.lib.rows import WARP_COLS, at_most, in_registers, warp_grid
from touchstone.backends.cupy.runtime.module import GRID_LIMIT, Module
from touchstone.backends.signatures._add_norms import empty_outputs
from touchstone.backends.variants import variant

_naive = Module(__file__, "naive.cu")
_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols), any number of columns. Source: [dao2024]."""
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    if y.numel():
        operands = (x, residual, weight, y, h, *x.stride(), *residual.stride(), *weight.stride())
        _naive.launch("add_rms_norm_naive", -(-rows // 128), 128, *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
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
        operands = (x, residual, weight, y, h, *x.stride(), *residual.stride(), *weight.stride())
        _scalar.launch("add_rms_norm_warp", *warp_grid(rows), *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
def block(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols), any number of columns.

    x, residual and h are read once. Source: [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    if y.numel():
        operands = (x, residual, weight, y, h, *x.stride(), *residual.stride(), *weight.stride())
        grid = min(rows, GRID_LIMIT[0])
        _scalar.launch("add_rms_norm_block", grid, threads(cols), *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
def vectorised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    y, h = empty_outputs(x)
    extent, definitions = in_registers(rows, cols, x, residual, weight, y, vectors=2, across=512)
    if y.numel():
        operands = (x, residual, weight, y, h, *x.stride(), *residual.stride(), *weight.stride())
        _vectorised.launch("add_rms_norm_vectorised", *extent, *operands, rows, cols, eps, dtype=x.dtype, **definitions)
    return y, h
