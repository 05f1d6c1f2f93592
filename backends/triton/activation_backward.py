"""Gradients of y = act(x + bias): dx = dy·act'(x + bias), dbias = its sum over rows.

looped: a program has 128 columns and loops over all rows, whose sum it keeps [hendrycks2016]
partials: some programs share the rows of 1024 columns, one part each, and another launch adds the parts [hsu2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs, parts_of
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.activations import activation_slope
from touchstone.backends.triton.lib.pointwise import programs
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.variants import variant

# rows and columns of a tile; of two rows a thread adds up both itself, and no program waits for its warps
_LOOPED, _PARTIALS = (16, 128), (2, 1024)


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_b", "stride_dyn"])
def _gradient_kernel(
    x_ptr,
    bias_ptr,
    dy_ptr,
    dx_ptr,
    sum_ptr,
    stride_xm,
    stride_xn,
    stride_b,
    stride_dym,
    stride_dyn,
    rows,
    cols,
    parts,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    part = tl.program_id(0) % parts
    col = (tl.program_id(0) // parts).to(tl.int64) * COLS + tl.arange(0, COLS)
    length = tl.cdiv(tl.cdiv(rows, parts), ROWS) * ROWS
    bias = tl.zeros((COLS,), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + col * stride_b, mask=col < cols, other=0.0).to(tl.float32)
    total = tl.zeros((COLS,), tl.float32)
    for start in tl.range(part * length, tl.minimum(part * length + length, rows), ROWS):
        row = start + tl.arange(0, ROWS).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)[None, :]
        x = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * stride_dym + col * stride_dyn, mask=inside, other=0.0).to(tl.float32)
        dx = tl.where(inside, dy * activation_slope(x + bias[None, :], ACTIVATION), 0.0)
        tl.store(dx_ptr + row * cols + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        total += tl.sum(dx, axis=0)
    if sum_ptr is not None:
        tl.store(sum_ptr + part.to(tl.int64) * cols + col, total.to(sum_ptr.dtype.element_ty), mask=col < cols)


@variant()
def looped(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hendrycks2016].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        _launch(x, bias, dy, dx, dbias, 1, activation, _LOOPED)
    return dx, dbias


@triton.jit
def _sum_kernel(partial_ptr, dbias_ptr, cols, parts, PARTS: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    total = tl.zeros((PARTS, COLS), tl.float32)
    for start in range(0, parts, PARTS):
        part = (start + tl.arange(0, PARTS)).to(tl.int64)[:, None]
        total += tl.load(partial_ptr + part * cols + col, mask=(part < parts) & (col < cols)[None, :], other=0.0)
    tl.store(dbias_ptr + col, tl.sum(total, axis=0).to(dbias_ptr.dtype.element_ty), mask=col < cols)


@variant()
def partials(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hsu2024].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        rows, cols = x.shape
        most = ceil_div(grid_programs(x, 8), ceil_div(cols, _PARTIALS[1]))  # narrow rows have as many programs
        parts = parts_of(rows, most, least=16)
        partial = None
        if dbias is not None:
            partial = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
        _launch(x, bias, dy, dx, partial, parts, activation, _PARTIALS)
        if dbias is not None:
            _sum_kernel[programs(cols, 16)](partial, dbias, cols, parts, PARTS=128, COLS=16)
    return dx, dbias


def _launch(x, bias, dy, dx, sums, parts: int, activation: str, tile: tuple[int, int]) -> None:
    """Fill dx and `sums`, (parts, cols) or (cols,) of one part; None where nothing is to be summed."""
    rows, cols = x.shape
    grid = programs(parts * ceil_div(cols, tile[1]), 1)
    operands = (x, bias, dy, dx, sums, *x.stride(), 0 if bias is None else bias.stride(0), *dy.stride())
    _gradient_kernel[grid](*operands, rows, cols, parts, ACTIVATION=activation, ROWS=tile[0], COLS=tile[1])
