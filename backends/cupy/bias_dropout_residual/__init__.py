"""y = dropout(x + bias) + residual, on matrices; the index of an element is row·cols + col.

unfused: a launch for each of the three steps, with x + bias and its dropout in memory between them [vaswani2017]
fused: one launch, in which they stay in registers: two matrices are read and one is written [shoeybi2019]
vectorised: the same for 16 bytes of a row in one access [xlite2025]
"""

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures._dropout import in_one_run
from touchstone.backends.signatures.bias_dropout_residual import empty_output, step_of
from touchstone.backends.variants import variant

_unfused = Module(__file__, "unfused.cu")
_fused = Module(__file__, "fused.cu")


@variant()
def unfused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols); any strides.

    What lies between the steps is float32. Source: [vaswani2017].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    if size := y.numel():
        h, dropped = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for _ in range(2))
        grid, cols, dtype = -(-size // 256), x.shape[1], x.dtype
        _unfused.launch("bdr_bias", grid, 256, x, bias, h, size, cols, *x.stride(), step_of(bias), dtype=dtype)
        _unfused.launch("bdr_dropout", grid, 256, h, dropped, size, *rule, dtype=dtype)
        operands = (dropped, residual, y, size, cols, *residual.stride())
        _unfused.launch("bdr_residual", grid, 256, *operands, dtype=dtype)
    return y


@variant()
def fused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols); any strides.

    Source: [shoeybi2019].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    if size := y.numel():
        strides = (*x.stride(), step_of(bias), *residual.stride())
        operands = (x, bias, residual, y, size, x.shape[1], *strides, *rule)
        _fused.launch("bdr_fused", -(-size // 1024), 256, *operands, dtype=x.dtype)
    return y


@variant()
def vectorised(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols).

    Declines operands that are not contiguous from a multiple of 16 bytes on, and columns that are no multiple of 16
    bytes. Source: [xlite2025].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    in_one_run(*(operand for operand in (x, bias, residual) if operand is not None))
    lanes = 16 // x.element_size()
    if x.shape[1] % lanes:
        raise Unsupported(f"{x.shape[1]} columns; expected a multiple of {lanes}")
    if size := y.numel():
        operands = (x, bias, residual, y, size, x.shape[1], *rule)
        _fused.launch("bdr_vectorised", -(-size // (256 * lanes)), 256, *operands, dtype=x.dtype)
    return y
