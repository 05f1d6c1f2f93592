"""Wrong kernels of softmax: `_looped_kernel` with tiles of 64 columns, and `_persistent_kernel` over rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.softmax import KERNELS as SHARED


@triton.jit
def _load(x_ptr, col, x_col, cols, FAULT: tl.constexpr):
    offset = col.to(tl.int64) * x_col
    if FAULT == "column_stride_ignored":
        offset = col.to(tl.int64)
    if FAULT == "load_unmasked":
        x = tl.load(x_ptr + offset)
    elif FAULT == "no_fill":
        x = tl.load(x_ptr + offset, mask=col < cols)
    elif FAULT == "fill_zero":
        x = tl.load(x_ptr + offset, mask=col < cols, other=0.0)
    else:
        x = tl.load(x_ptr + offset, mask=col < cols, other=float("-inf"))
    x = x.to(tl.float32)
    if FAULT == "nan_skipped":
        x = tl.maximum(x, float("-inf"))
    return x


@triton.jit
def _looped_kernel(x_ptr, y_ptr, x_row, x_col, cols, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if FAULT == "program_axis":
        row = tl.program_id(1).to(tl.int64)
    if FAULT == "offset_int32":
        x_ptr += tl.program_id(0) * x_row
    else:
        x_ptr += row * x_row
    y_ptr += row * cols
    end = cols
    if FAULT == "one_block":
        end = tl.minimum(cols, BLOCK)

    m = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, end, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), x_col, cols, FAULT)
        if FAULT != "first_maximum" or start == 0:
            m = tl.maximum(m, x)
    m = tl.max(m, axis=0)

    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, end, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), x_col, cols, FAULT)
        if FAULT == "last_sum":
            l = tl.exp(x - m)
        else:
            l += tl.exp(x - m)
    l = tl.sum(l, axis=0)

    for start in range(0, end, BLOCK):
        col = start + tl.arange(0, BLOCK)
        y = tl.exp(_load(x_ptr, col, x_col, cols, FAULT) - m) / l
        if FAULT == "store_unmasked":
            tl.store(y_ptr + col, y)
        else:
            tl.store(y_ptr + col, y, mask=col < cols)


KERNELS = SHARED | {
    "fill_zero": Kernel("mask", "lanes past the last column are loaded as 0 and enter the maximum and the sum"),
    "no_fill": Kernel(
        "mask",
        "lanes past the last column are loaded without `other`, and what they hold enters the maximum and the sum",
    ),
    "load_unmasked": Kernel("bounds", "the load has no mask: lanes past the last column read on", "OutOfBounds"),
    "store_unmasked": Kernel(
        "bounds",
        "the store has no mask: a row writes past its last column, the last row past the output",
        "OutOfBounds",
    ),
    "offset_int32": Kernel("offset", "row times row stride is computed in 32 bits", "IntegerOverflowError"),
    "program_axis": Kernel(
        "axis", "the row is program_id(1), which is 0 in every program of the grid: only the first row is written"
    ),
    "grid_short_of_a_row": Kernel("tail", "the grid has one program too few: the last row is not written"),
    "one_block": Kernel("tail", "only the first block of columns is done"),
    "first_maximum": Kernel("overflow", "the maximum is that of the first tile of columns"),
    "last_sum": Kernel("accumulator", "the denominator is that of the last tile of columns: `l =` for `l +=`"),
    "nan_skipped": Kernel("special", "a NaN is lost in tl.maximum, which returns its other operand"),
    "programs_hard_coded": Kernel(
        "tail",
        "a persistent kernel steps by a fixed number of programs, more than the grid has: rows between are not written",
    ),
}


def _looped(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        programs = max(rows - 1, 1) if fault == "grid_short_of_a_row" else rows
        _looped_kernel[(programs,)](
            x, y, *x.stride(), cols, FAULT=fault, BLOCK=min(triton.next_power_of_2(cols), 64), num_warps=1
        )
    return y


plant_kernels(
    globals(),
    _looped,
    KERNELS,
    "fill_zero",
    "no_fill",
    "load_unmasked",
    "store_unmasked",
    "offset_int32",
    "column_stride_ignored",
    "program_axis",
    "grid_short_of_a_row",
    "one_block",
    "first_maximum",
    "last_sum",
    "nan_skipped",
)


@triton.jit
def _persistent_kernel(x_ptr, y_ptr, x_row, x_col, rows, cols, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    inside = col < cols
    step = tl.num_programs(0)
    if FAULT == "programs_hard_coded":
        step = 8
    for row in range(tl.program_id(0).to(tl.int64), rows, step):
        x = tl.load(x_ptr + row * x_row + col.to(tl.int64) * x_col, mask=inside, other=float("-inf")).to(tl.float32)
        p = tl.exp(x - tl.max(x, axis=0))
        tl.store(y_ptr + row * cols + col, p / tl.sum(p, axis=0), mask=inside)


def _persistent(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        _persistent_kernel[(min(rows, 4),)](
            x, y, *x.stride(), rows, cols, FAULT=fault, BLOCK=triton.next_power_of_2(cols), num_warps=4
        )
    return y


plant_kernels(globals(), _persistent, KERNELS, "programs_hard_coded")
