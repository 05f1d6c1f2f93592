"""Residual add and layer norm in one kernel: h = x + residual, y = layer_norm(h), which saves writing and rereading h.

naive: one thread per row; h is written and read back, rounded, by the two later passes [dao2024]
warp: one warp per row, which its lanes hold in registers; y comes from h before its rounding [baetal2016] [dao2024]
block: one block per row of any length; h is written and read back, rounded, by the two later passes [dao2024]
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
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols), any number of columns.

    Source: [baetal2016], [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    if y.numel():
        operands = (x, residual, weight, bias, y, h, *_strides(x, residual, weight, bias))
        _naive.launch("add_layer_norm_naive", -(-rows // 128), 128, *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
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
        operands = (x, residual, weight, bias, y, h, *_strides(x, residual, weight, bias))
        _scalar.launch("add_layer_norm_warp", *warp_grid(rows), *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
def block(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols), any number of columns.

    x and residual are read once, h twice. Source: [baetal2016], [dao2024].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    if y.numel():
        operands = (x, residual, weight, bias, y, h, *_strides(x, residual, weight, bias))
        grid = min(rows, GRID_LIMIT[0])
        _scalar.launch("add_layer_norm_block", grid, threads(cols), *operands, rows, cols, eps, dtype=x.dtype)
    return y, h


@variant()
def vectorised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,), bias (cols,) or None -> y, h (rows, cols).

    Declines more than 32768 columns, the registers of one block, and more than 16384 where rows neither begin at
    multiples of 16 bytes nor follow one another; those move an element at a time. Source: [oneflow2021].
    """
    rows, cols = shapes("rows cols, rows cols, cols, cols?", x=x, residual=residual, weight=weight, bias=bias)
    y, h = empty_outputs(x)
    extent, definitions = in_registers(rows, cols, x, residual, weight, bias, y, vectors=2, across=512)
    if y.numel():
        operands = (x, residual, weight, bias, y, h, *_strides(x, residual, weight, bias))
        _vectorised.launch(
            "add_layer_norm_vectorised", *extent, *operands, rows, cols, eps, dtype=x.dtype, **definitions
        )
    return y, h


def _strides(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[int, ...]:
    return (*x.stride(), *residual.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
