"""Wrong kernels of layer_norm_backward: a few programs walk over the rows, their sums of dweight and dbias meet
later."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.layer_norm_backward import KERNELS as SHARED

_PROGRAMS = 3


@triton.jit
def _rows_kernel(
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
    FAULT: tl.constexpr,
    ATOMIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < cols
    w = tl.load(w_ptr + col.to(tl.int64) * w_col, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    end = rows
    if FAULT == "last_rows_dropped":
        end = rows // tl.num_programs(0) * tl.num_programs(0)
    for row in range(program, end, tl.num_programs(0)):
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
        if FAULT == "weight_ignored":
            g = dy
        shift = tl.sum(g, axis=0) / cols
        dot = tl.sum(g * normed, axis=0) / cols
        if FAULT == "mean_gradient_left_out":
            shift = 0.0
        tl.store(dx_ptr + row * cols + col, rstd * (g - shift - normed * dot), mask=inside)
        dweight += dy * normed
        dbias += dy
    if FAULT == "sums_load_and_store":
        dweight += tl.load(dweight_ptr + col, mask=inside, other=0.0)
        tl.store(dweight_ptr + col, dweight, mask=inside)
        tl.atomic_add(dbias_ptr + col, dbias, mask=inside, sem="relaxed")
    elif ATOMIC:
        tl.atomic_add(dweight_ptr + col, dweight.to(dweight_ptr.dtype.element_ty), mask=inside, sem="relaxed")
        tl.atomic_add(dbias_ptr + col, dbias.to(dbias_ptr.dtype.element_ty), mask=inside, sem="relaxed")
    else:
        tl.store(dweight_ptr + program * cols + col, dweight, mask=inside)
        tl.store(dbias_ptr + program * cols + col, dbias, mask=inside)


@triton.jit
def _sum_kernel(dw_ptr, db_ptr, dweight_ptr, dbias_ptr, parts, cols, BLOCK: tl.constexpr):
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        dweight += tl.load(dw_ptr + part * cols + col, mask=col < cols, other=0.0)
        dbias += tl.load(db_ptr + part * cols + col, mask=col < cols, other=0.0)
    tl.store(dweight_ptr + col, dweight, mask=col < cols)
    tl.store(dbias_ptr + col, dbias, mask=col < cols)


def _launch(kernel_fault: str, parts_ptr, x, weight, dy, mean, rstd, eps: float, dx, programs: int, atomic: bool):
    rows, cols = x.shape
    strides = (*x.stride(), *weight.stride(), *dy.stride())
    statistics = (mean.stride(0) if mean is not None else 0, rstd.stride(0) if rstd is not None else 0)
    _rows_kernel[(programs,)](
        x,
        weight,
        dy,
        mean,
        rstd,
        dx,
        *parts_ptr,
        *strides,
        *statistics,
        rows,
        cols,
        eps,
        FAULT=kernel_fault,
        ATOMIC=atomic,
        BLOCK=triton.next_power_of_2(cols),
    )


KERNELS = SHARED | {
    "last_rows_dropped": Kernel("tail", "rows beyond a multiple of the number of programs are left out"),
    "more_parts_than_programs": Kernel(
        "unwritten", "dweight and dbias sum four partial sums, of which at most three are written"
    ),
    "weight_ignored": Kernel("weights", "dx is computed with a weight of 1"),
    "sums_load_and_store": Kernel(
        "race", "programs add to dweight by load and store without an atomic: updates get lost", "RaceCondition"
    ),
    "sums_on_empty": Kernel("accumulator", "programs add to a dweight and a dbias that nothing has set to zero"),
    "sums_in_sixteen_bits": Kernel(
        "precision",
        "programs add to a 16-bit dweight and dbias, which rounds every addition",
        dtypes=("float16", "bfloat16"),
    ),
}


def _partials(x, weight, dy, *, mean=None, rstd=None, eps: float = 1e-5, fault: str = "none"):
    shapes("rows cols, cols, rows cols, rows:float32?, rows:float32?", x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    rows, cols = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (torch.zeros((cols,), dtype=x.dtype, device=x.device) for _ in range(2))
    if dx.numel():
        programs = min(rows, _PROGRAMS)
        parts = 4 if fault == "more_parts_than_programs" else programs
        partial = [torch.empty((parts, cols), dtype=torch.float32, device=x.device) for _ in range(2)]
        _launch(fault, partial, x, weight, dy, mean, rstd, eps, dx, programs, atomic=False)
        _sum_kernel[(triton.cdiv(cols, 256),)](*partial, dweight, dbias, parts, cols, BLOCK=256)
    return dx, dweight, dbias


plant_kernels(
    globals(),
    _partials,
    KERNELS,
    "last_rows_dropped",
    "more_parts_than_programs",
    "mean_gradient_left_out",
    "weight_ignored",
)


def _atomics(x, weight, dy, *, mean=None, rstd=None, eps: float = 1e-5, fault: str = "none"):
    shapes("rows cols, cols, rows cols, rows:float32?, rows:float32?", x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    rows, cols = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dtype = x.dtype if fault == "sums_in_sixteen_bits" else torch.float32
    allocate = torch.empty if fault == "sums_on_empty" else torch.zeros
    dweight, dbias = (allocate((cols,), dtype=dtype, device=x.device) for _ in range(2))
    if dx.numel():
        sums = [dweight, dbias]
        _launch(fault, sums, x, weight, dy, mean, rstd, eps, dx, min(rows, 16), atomic=True)
    return dx, dweight.to(x.dtype), dbias.to(x.dtype)


plant_kernels(
    globals(), _atomics, KERNELS, "sums_load_and_store", "sums_on_empty", "sums_in_sixteen_bits", deterministic=False
)
