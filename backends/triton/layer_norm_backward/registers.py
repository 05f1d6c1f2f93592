"""partials and atomics: a row in the registers of one program, which sums dweight and dbias over many rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.triton.layer_norm_backward._launch import (
    _check,
    _outputs,
    _reduce,
    _statistics_strides,
    _strides,
    _zeros,
)
from touchstone.backends.triton.lib.rows import resident, warps
from touchstone.backends.variants import variant

# Arguments whose alignment would not improve the code.
_UNALIGNED = ["x_col", "w_col", "dy_col", "mean_row", "rstd_row"]


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_UNALIGNED)
def _partials_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    mean_row,
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
    dbias = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row + col.to(tl.int64) * dy_col, mask=inside, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + row * mean_row)
        else:
            mean = tl.sum(x, axis=0) / cols
        centred = tl.where(inside, x - mean, 0.0)
        if rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row * rstd_row)
        else:
            rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
        normed = centred * rstd
        g = dy * w
        shift = tl.sum(g, axis=0) / cols
        dot = tl.sum(g * normed, axis=0) / cols
        tl.store(dx_ptr + row * cols + col, rstd * (g - shift - normed * dot), mask=inside)
        dweight += dy * normed
        dbias += dy
    tl.store(dw_partial_ptr + program * cols + col, dweight, mask=inside)
    tl.store(db_partial_ptr + program * cols + col, dbias, mask=inside)


def partials(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 8192 columns: the registers of one program. Source: [apex2018].
    """
    rows, cols = _check(x, weight, dy, mean, rstd)
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    dx, dweight, dbias = _outputs(x)
    if dx.numel():
        programs, block = _grid(x)
        dw_partial, db_partial = (torch.empty((programs, cols), dtype=torch.float32, device=x.device) for _ in range(2))
        strides = (*_strides(x, weight, dy), *_statistics_strides(mean, rstd))
        _partials_kernel[(programs,)](
            x,
            weight,
            dy,
            mean,
            rstd,
            dx,
            dw_partial,
            db_partial,
            *strides,
            rows,
            cols,
            eps,
            BLOCK=block,
            num_warps=warps(block),
        )
        _reduce(dw_partial, db_partial, dweight, dbias)
    return dx, dweight, dbias


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=_UNALIGNED)
def _atomics_kernel(
    x_ptr,
    w_ptr,
    dy_ptr,
    mean_ptr,
    rstd_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    x_row,
    x_col,
    w_col,
    dy_row,
    dy_col,
    mean_row,
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
    dbias = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, tl.num_programs(0), num_stages=3):
        x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row + col.to(tl.int64) * dy_col, mask=inside, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + row * mean_row)
        else:
            mean = tl.sum(x, axis=0) / cols
        centred = tl.where(inside, x - mean, 0.0)
        if rstd_ptr is not None:
            rstd = tl.load(rstd_ptr + row * rstd_row)
        else:
            rstd = tl.rsqrt(tl.sum(centred * centred, axis=0) / cols + eps)
        normed = centred * rstd
        g = dy * w
        shift = tl.sum(g, axis=0) / cols
        dot = tl.sum(g * normed, axis=0) / cols
        tl.store(dx_ptr + row * cols + col, rstd * (g - shift - normed * dot), mask=inside)
        dweight += dy * normed
        dbias += dy
    tl.atomic_add(dweight_ptr + col, dweight, mask=inside, sem="relaxed")
    tl.atomic_add(dbias_ptr + col, dbias, mask=inside, sem="relaxed")


@variant(deterministic=False)
def atomics(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    The order of the additions to dweight and dbias, and so their rounding, changes from call to call. Declines more
    than 8192 columns: the registers of one program. Source: [apex2018].
    """
    rows, cols = _check(x, weight, dy, mean, rstd)
    if cols > 8192:
        raise Unsupported(f"{cols} columns; one program holds 8192")
    dx, dweight, dbias = _outputs(x)
    if dx.numel():
        programs, block = _grid(x)
        dw_sum, db_sum = (dweight, dbias) if x.dtype == torch.float32 else (_zeros(x), _zeros(x))
        strides = (*_strides(x, weight, dy), *_statistics_strides(mean, rstd))
        _atomics_kernel[(programs,)](
            x,
            weight,
            dy,
            mean,
            rstd,
            dx,
            dw_sum,
            db_sum,
            *strides,
            rows,
            cols,
            eps,
            BLOCK=block,
            num_warps=warps(block),
        )
        if dw_sum is not dweight:
            _reduce(dw_sum[None], db_sum[None], dweight, dbias)
    return dx, dweight, dbias


def _grid(x: torch.Tensor) -> tuple[int, int]:
    """Programs, so many that a multiprocessor holds the sums of 8192 columns, and the block of columns of each."""
    block = triton.next_power_of_2(x.shape[1])
    return min(x.shape[0], resident(x, min(8192 // block, 16))), block
