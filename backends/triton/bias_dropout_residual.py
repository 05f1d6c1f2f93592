"""y = dropout(x + bias) + residual, on matrices; the index of an element is row·cols + col.

unfused: a launch for each of the three steps, with x + bias and its dropout in memory between them [vaswani2017]
fused: one launch, in which they stay in registers: two matrices are read and one is written [shoeybi2019]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.bias_dropout_residual import empty_output, step_of
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.philox import dropped_out, rows_of_elements, rows_of_words, words_of
from touchstone.backends.variants import variant

BLOCK = 1024


@triton.jit
def _bias_kernel(x_ptr, bias_ptr, h_ptr, size, cols, stride_xm, stride_xn, stride_b, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, col = e // cols, e % cols
    h = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=e < size, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        h += tl.load(bias_ptr + col * stride_b, mask=e < size, other=0.0).to(tl.float32)
    tl.store(h_ptr + e, h, mask=e < size)


@triton.jit(do_not_specialize=["threshold", "seed", "offset"])
def _dropout_kernel(h_ptr, y_ptr, size, threshold, scale, seed, offset, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    r0, r1, r2, r3 = words_of(first // 4 + tl.arange(0, BLOCK // 4), seed, offset)
    e = rows_of_elements(first, BLOCK // 4)
    h = tl.load(h_ptr + e, mask=e < size, other=0.0)
    tl.store(y_ptr + e, dropped_out(h, rows_of_words(r0, r1, r2, r3), threshold, scale), mask=e < size)


@triton.jit
def _residual_kernel(h_ptr, residual_ptr, y_ptr, size, cols, stride_rm, stride_rn, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, col = e // cols, e % cols
    residual = tl.load(residual_ptr + row * stride_rm + col * stride_rn, mask=e < size, other=0.0).to(tl.float32)
    tl.store(y_ptr + e, tl.load(h_ptr + e, mask=e < size, other=0.0) + residual, mask=e < size)


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
        grid, cols = (ceil_div(size, BLOCK),), x.shape[1]
        _bias_kernel[grid](x, bias, h, size, cols, *x.stride(), step_of(bias), BLOCK=BLOCK)
        _dropout_kernel[grid](h, dropped, size, *rule, BLOCK=BLOCK)
        _residual_kernel[grid](dropped, residual, y, size, cols, *residual.stride(), BLOCK=BLOCK)
    return y


@triton.jit(do_not_specialize=["threshold", "seed", "offset"])
def _fused_kernel(
    x_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    size,
    cols,
    stride_xm,
    stride_xn,
    stride_b,
    stride_rm,
    stride_rn,
    threshold,
    scale,
    seed,
    offset,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    r0, r1, r2, r3 = words_of(first // 4 + tl.arange(0, BLOCK // 4), seed, offset)
    e = rows_of_elements(first, BLOCK // 4)
    row, col = e // cols, e % cols
    h = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=e < size, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        h += tl.load(bias_ptr + col * stride_b, mask=e < size, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * stride_rm + col * stride_rn, mask=e < size, other=0.0).to(tl.float32)
    y = dropped_out(h, rows_of_words(r0, r1, r2, r3), threshold, scale) + residual
    tl.store(y_ptr + e, y, mask=e < size)


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
        steps = (*x.stride(), step_of(bias), *residual.stride())
        grid = (ceil_div(size, BLOCK),)
        _fused_kernel[grid](x, bias, residual, y, size, x.shape[1], *steps, *rule, BLOCK=BLOCK)
    return y
