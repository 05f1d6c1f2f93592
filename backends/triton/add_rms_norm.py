"""Residual add and RMS norm in one kernel: h = x + residual, y = rms_norm(h), which saves writing and rereading h.

onerow: one program holds a row of h in registers; y comes from h before its rounding [dao2024]
looped: h is written tile by tile and read back, rounded, by the second pass; a row may have any length [dao2024]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import multiple, row_unit, warps
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_rn", "stride_w"])
def _onerow_kernel(
    x_ptr,
    r_ptr,
    w_ptr,
    y_ptr,
    h_ptr,
    stride_xm,
    stride_xn,
    stride_rm,
    stride_rn,
    stride_w,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, stride_rm, cols = multiple(stride_xm, UNIT), multiple(stride_rm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    r_ptr += row * stride_rm
    y_ptr += row * cols
    h_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
    h = x + tl.load(r_ptr + col.to(tl.int64) * stride_rn, mask=inside, other=0.0).to(tl.float32)
    tl.store(h_ptr + col, h, mask=inside)
    rstd = tl.rsqrt(tl.sum(h * h, axis=0) / cols + eps)

    w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + col, h * rstd * w, mask=inside)


@variant()
def onerow(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols).

    Declines more than 32768 columns: the registers of one program. Source: [dao2024].
    """
    _, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    if cols > 32768:
        raise Unsupported(f"{cols} columns; one program holds 32768")
    return _launch(_onerow_kernel, x, residual, weight, eps, next_power_of_2(cols))


@triton.jit(do_not_specialize_on_alignment=["stride_xn", "stride_rn", "stride_w"])
def _looped_kernel(
    x_ptr,
    r_ptr,
    w_ptr,
    y_ptr,
    h_ptr,
    stride_xm,
    stride_xn,
    stride_rm,
    stride_rn,
    stride_w,
    cols,
    eps,
    BLOCK: tl.constexpr,
    UNIT: tl.constexpr,
):
    stride_xm, stride_rm, cols = multiple(stride_xm, UNIT), multiple(stride_rm, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_xm
    r_ptr += row * stride_rm
    y_ptr += row * cols
    h_ptr += row * cols

    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        x = tl.load(x_ptr + col.to(tl.int64) * stride_xn, mask=inside, other=0.0).to(tl.float32)
        h = x + tl.load(r_ptr + col.to(tl.int64) * stride_rn, mask=inside, other=0.0).to(tl.float32)
        h = h.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + col, h, mask=inside)
        square += h.to(tl.float32) * h.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(square, axis=0) / cols + eps)

    # A thread may read back columns that another thread of the program wrote.
    tl.debug_barrier()
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        h = tl.load(h_ptr + col, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + col.to(tl.int64) * stride_w, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + col, h * rstd * w, mask=inside)


@variant()
def looped(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (rows, cols), weight (cols,) -> y, h (rows, cols), any number of columns.

    x, residual and h are read once. Source: [dao2024].
    """
    _, cols = shapes("rows cols, rows cols, cols", x=x, residual=residual, weight=weight)
    return _launch(_looped_kernel, x, residual, weight, eps, min(next_power_of_2(cols), 4096))


def _launch(
    kernel, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = x.shape
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    h = torch.empty_like(y)
    if y.numel():
        strides = (*x.stride(), *residual.stride(), *weight.stride())
        kernel[(rows,)](
            x,
            residual,
            weight,
            y,
            h,
            *strides,
            cols,
            eps,
            BLOCK=block,
            UNIT=row_unit(x, residual),
            num_warps=warps(block),
        )
    return y, h
