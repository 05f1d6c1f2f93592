"""y = act(x + bias), element by element; bias may be None.

naive: a program has a block of one row's columns; a row that is no multiple of the block leaves lanes idle [tillet2019]
vectorised: programs cut all elements into blocks: contiguous ones move in accesses of 16 bytes, whatever the row's
            length [xlite2025]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation
from touchstone.backends.sizes import ceil_div, next_power_of_2
from touchstone.backends.triton.lib.activations import activate
from touchstone.backends.triton.lib.pointwise import is_flat, load, offsets, programs
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_b"])
def _naive_kernel(
    x_ptr, bias_ptr, y_ptr, stride_xm, stride_xn, stride_b, cols, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    blocks = tl.cdiv(cols, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    col = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=col < cols, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        x += tl.load(bias_ptr + col * stride_b, mask=col < cols, other=0.0).to(tl.float32)
    y = activate(x, ACTIVATION)
    tl.store(y_ptr + row * cols + col, y.to(y_ptr.dtype.element_ty), mask=col < cols)


@variant()
def naive(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [tillet2019]."""
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    check_activation(activation)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        block = min(next_power_of_2(cols), 1024)
        grid = programs(rows * ceil_div(cols, block), 1)
        stride_b = 0 if bias is None else bias.stride(0)
        _naive_kernel[grid](x, bias, y, *x.stride(), stride_b, cols, ACTIVATION=activation, BLOCK=block)
    return y


@triton.jit
def _activated(
    x_ptr, bias_ptr, y_ptr, x_row, x_col, bias_step, i, inside, cols, ACTIVATION: tl.constexpr, FLAT: tl.constexpr
):
    x = load(x_ptr + offsets(i, cols, x_row, x_col, FLAT), inside)
    if bias_ptr is not None:
        x += load(bias_ptr + i % cols * bias_step, inside)
    tl.store(y_ptr + i, activate(x, ACTIVATION).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_b"])
def _vectorised_kernel(
    x_ptr,
    bias_ptr,
    y_ptr,
    stride_xm,
    stride_xn,
    stride_b,
    size,
    cols,
    ACTIVATION: tl.constexpr,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        _activated(x_ptr, bias_ptr, y_ptr, stride_xm, stride_xn, stride_b, i, None, cols, ACTIVATION, FLAT)
    else:
        _activated(x_ptr, bias_ptr, y_ptr, stride_xm, stride_xn, stride_b, i, i < size, cols, ACTIVATION, FLAT)


@variant()
def vectorised(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    check_activation(activation)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        stride_b = 0 if bias is None else bias.stride(0)
        operands = (x, bias, y, *x.stride(), stride_b, y.numel(), cols)
        grid = programs(y.numel(), 2048)
        _vectorised_kernel[grid](*operands, ACTIVATION=activation, FLAT=is_flat(x), BLOCK=2048, num_warps=8)
    return y
