"""partials and atomics: a row in the registers of one program, which sums dweight over many rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.triton.lib.rows import resident, warps
from touchstone.backends.triton.rms_norm_backward._launch import (
    _check,
    _outputs,
    _reduce,
    _statistics_stride,
    _strides,
    _zeros,
)
from touchstone.backends.variants import variant

# Arguments whose alignment would not improve the code.
_UNALIGNED = ["x_col", "w_col", "dy_col", "rstd_row"]


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_UNALIGNED)
def _partials_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    rstd_ptr,
    dx_ptr,
    partial_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    rstd_row,
    rows,
    cols,
    eps,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    w = tl.load(w_ptr + col.to(tl.int64) * w_col, mask=inside, other=0.0).to(tl.float32)

    dweight = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row + col.to(tl.int64) * dy_col, mask=inside, other=0.0).to(tl.float32)
        if rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row * rstd_row)
        else:
            rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
        normed = x * rstd
        g = dy * w
        dot = tl.sum(g * normed, axis=0) / cols
        tl.store(dx_ptr + row * cols + col, rstd * (g - normed * dot), mask=inside)
        dweight += dy * normed
    tl.store(partial_ptr + program * cols + col, dweight, mask=inside)


def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    Declines more than 8192 columns: the registers of one program. Source: [hsu2024].
    """
    rows, cols = _check(x, weight, dy, rstd)
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    dx, dweight = _outputs(x)
    if dx.numel():
        programs, block = _grid(x)
        partial = torch.empty((programs, cols), dtype=torch.float32, device=x.device)
        strides = (*_strides(x, weight, dy), _statistics_stride(rstd))
        _partials_kernel[(programs,)](
            x, weight, dy, rstd, dx, partial, *strides, rows, cols, eps, BLOCK=block, num_warps=warps(block)
        )
        _reduce(partial, dweight)
    return dx, dweight


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_UNALIGNED)
def _atomics_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    rstd_row,
    rows,
    cols,
    eps,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    w = tl.load(w_ptr + col.to(tl.int64) * w_col, mask=inside, other=0.0).to(tl.float32)

    dweight = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row + col.to(tl.int64) * dy_col, mask=inside, other=0.0).to(tl.float32)
        if rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row * rstd_row)
        else:
            rstd = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
        normed = x * rstd
        g = dy * w
        dot = tl.sum(g * normed, axis=0) / cols
        tl.store(dx_ptr + row * cols + col, rstd * (g - normed * dot), mask=inside)
        dweight += dy * normed
    tl.atomic_add(dweight_ptr + col, dweight, mask=inside, sem="relaxed")


@variant(deterministic=False)
def atomics(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx (rows, cols), dweight (cols,).

    The order of the additions to dweight, and so its rounding, changes from call to call. Declines more than 8192
    columns: the registers of one program. Source: [apex2018].
    """
    rows, cols = _check(x, weight, dy, rstd)
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    dx, dweight = _outputs(x)
    if dx.numel():
        programs, block = _grid(x)
        dw_sum = dweight if x.dtype == torch.float32 else _zeros(x)
        strides = (*_strides(x, weight, dy), _statistics_stride(rstd))
        _atomics_kernel[(programs,)](
            x, weight, dy, rstd, dx, dw_sum, *strides, rows, cols, eps, BLOCK=block, num_warps=warps(block)
        )
        if dw_sum is not dweight:
            _reduce(dw_sum[None], dweight)
    return dx, dweight


def _grid(x: torch.Tensor) -> tuple[int, int]:
    """Programs, so many that a multiprocessor holds the sums of 8192 columns, and the block of columns of each."""
    block = triton.next_power_of_2(x.shape[1])
    return min(x.shape[0], resident(x, min(8192 // block, 16))), block
