"""Softmax and its log-sum-exp, from one streaming pass for (m, l), the running max and the sum of exp(x - m).

online: tile by tile, rescaling l whenever m grows; a second pass writes y [milakov2018]
maskfree: the last tile split off, so that full tiles are loaded without a mask [jietal2025]
backward_order: the second pass in reverse, beginning with the tiles that the cache still holds [jietal2025]
evictfirst: the second pass marks its lines as the first to go, since nothing reads them again [jietal2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import multiple, row_unit, warps
from touchstone.backends.variants import variant


@triton.jit
def _fold(m, l, x):
    """Fold the tile x into the running max m and the sums l, one for each lane."""
    m_new = tl.maximum(m, tl.max(x, axis=0))
    # x - m is NaN where both are infinite: a leading tile of -inf would poison l, a +inf make its lse NaN.
    shift = tl.where(tl.abs(m_new) == float("inf"), 0.0, m_new)
    return m_new, shift, l * tl.exp(m - shift) + tl.exp(x - shift)


@triton.jit
def _finish(m, shift, l):
    """The denominator of y and the lse. Where the row's max is +inf its lse is +inf, its y NaN as torch.softmax's."""
    l = tl.sum(l, axis=0)
    return tl.where(m == float("inf"), float("nan"), l), shift + tl.log(l)


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _online_kernel(x_ptr, y_ptr, lse_ptr, stride_xm, stride_xn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols

    m = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
        m, shift, l = _fold(m, l, x)
    l, lse = _finish(m, shift, l)
    tl.store(lse_ptr + row, lse)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - shift) / l, mask=col < cols)


@variant()
def online(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [milakov2018]."""
    return _launch(_online_kernel, x)


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _maskfree_kernel(x_ptr, y_ptr, lse_ptr, stride_xm, stride_xn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols
    last = (cols - 1) // BLOCK * BLOCK

    m = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, last, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn).to(tl.float32)
        m, shift, l = _fold(m, l, x)
    col = last + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
    m, shift, l = _fold(m, l, x)
    l, lse = _finish(m, shift, l)
    tl.store(lse_ptr + row, lse)

    for start in range(0, last, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - shift) / l)
    col = last + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
    tl.store(y_ptr + col, tl.exp(x - shift) / l, mask=col < cols)


@variant()
def maskfree(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [jietal2025]."""
    return _launch(_maskfree_kernel, x)


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _backward_order_kernel(x_ptr, y_ptr, lse_ptr, stride_xm, stride_xn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols
    last = (cols - 1) // BLOCK * BLOCK

    m = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, last, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn).to(tl.float32)
        m, shift, l = _fold(m, l, x)
    col = last + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
    m, shift, l = _fold(m, l, x)
    l, lse = _finish(m, shift, l)
    tl.store(lse_ptr + row, lse)

    tl.store(y_ptr + col, tl.exp(x - shift) / l, mask=col < cols)
    for start in range(0, last, BLOCK):
        col = last - BLOCK - start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn).to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - shift) / l)


@variant()
def backward_order(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [jietal2025]."""
    return _launch(_backward_order_kernel, x)


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _evictfirst_kernel(x_ptr, y_ptr, lse_ptr, stride_xm, stride_xn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr):
    stride_xm, cols = multiple(stride_xm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    y_ptr += row * cols
    last = (cols - 1) // BLOCK * BLOCK

    m = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, last, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn).to(tl.float32)
        m, shift, l = _fold(m, l, x)
    col = last + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=col < cols, other=float("-inf")).to(tl.float32)
    m, shift, l = _fold(m, l, x)
    l, lse = _finish(m, shift, l)
    tl.store(lse_ptr + row, lse)

    tl.store(y_ptr + col, tl.exp(x - shift) / l, mask=col < cols)
    for start in range(0, last, BLOCK):
        col = last - BLOCK - start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, eviction_policy="evict_first").to(tl.float32)
        tl.store(y_ptr + col, tl.exp(x - shift) / l)


@variant()
def evictfirst(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, cols) -> y (rows, cols), lse (rows,) float32, natural log. Source: [jietal2025]."""
    return _launch(_evictfirst_kernel, x)


def _launch(kernel, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.full((rows,), float("-inf"), dtype=torch.float32, device=x.device)
    if y.numel():
        block = min(next_power_of_2(cols), 4096)
        kernel[(rows,)](x, y, lse, *x.stride(), cols, BLOCK=block, UNIT=row_unit(x), num_warps=warps(block))
    return y, lse
