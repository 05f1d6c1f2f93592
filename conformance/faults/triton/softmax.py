"""Wrong kernels of softmax: `_looped_kernel` with tiles of 64 columns, and `_persistent_kernel` over rows."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import mutant


@triton.jit
def _load(x_ptr, col, x_col, cols, FAULT: tl.constexpr):
    offset = col.to(tl.int64) * x_col
    if FAULT == "column stride":
        offset = col.to(tl.int64)
    if FAULT == "load mask":
        x = tl.load(x_ptr + offset)
    elif FAULT == "no fill":
        x = tl.load(x_ptr + offset, mask=col < cols)
    elif FAULT == "fill":
        x = tl.load(x_ptr + offset, mask=col < cols, other=0.0)
    else:
        x = tl.load(x_ptr + offset, mask=col < cols, other=float("-inf"))
    x = x.to(tl.float32)
    if FAULT == "nan":
        x = tl.maximum(x, float("-inf"))
    return x


@triton.jit
def _looped_kernel(x_ptr, y_ptr, x_row, x_col, cols, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if FAULT == "program axis":
        row = tl.program_id(1).to(tl.int64)
    if FAULT == "int32":
        x_ptr += tl.program_id(0) * x_row
    else:
        x_ptr += row * x_row
    y_ptr += row * cols
    end = cols
    if FAULT == "one block":
        end = tl.minimum(cols, BLOCK)

    m = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, end, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), x_col, cols, FAULT)
        if FAULT != "first maximum" or start == 0:
            m = tl.maximum(m, x)
    m = tl.max(m, axis=0)

    l = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, end, BLOCK):
        x = _load(x_ptr, start + tl.arange(0, BLOCK), x_col, cols, FAULT)
        if FAULT == "last sum":
            l = tl.exp(x - m)
        else:
            l += tl.exp(x - m)
    l = tl.sum(l, axis=0)

    for start in range(0, end, BLOCK):
        col = start + tl.arange(0, BLOCK)
        y = tl.exp(_load(x_ptr, col, x_col, cols, FAULT) - m) / l
        if FAULT == "store mask":
            tl.store(y_ptr + col, y)
        else:
            tl.store(y_ptr + col, y, mask=col < cols)


def _looped(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        programs = max(rows - 1, 1) if fault == "grid" else rows
        _looped_kernel[(programs,)](
            x, y, *x.stride(), cols, FAULT=fault, BLOCK=min(triton.next_power_of_2(cols), 64), num_warps=1
        )
    return y


@mutant("mask")
def fill_zero(x):
    """lanes past the last column are loaded as 0 and enter the maximum and the sum"""
    return _looped(x, "fill")


@mutant("mask")
def no_fill(x):
    """lanes past the last column are loaded without `other`, and what they hold enters the maximum and the sum"""
    return _looped(x, "no fill")


@mutant("bounds")
def load_unmasked(x):
    """the load has no mask: lanes past the last column read on"""
    return _looped(x, "load mask")


@mutant("bounds")
def store_unmasked(x):
    """the store has no mask: a row writes past its last column, the last row past the output"""
    return _looped(x, "store mask")


@mutant("offset")
def offset_int32(x):
    """row times row stride is computed in 32 bits"""
    return _looped(x, "int32")


@mutant("strides")
def column_stride_ignored(x):
    """the stride between columns is taken to be 1"""
    return _looped(x, "column stride")


@mutant("axis")
def program_axis(x):
    """the row is program_id(1), which is 0 in every program of the grid: only the first row is written"""
    return _looped(x, "program axis")


@mutant("tail")
def grid_short_of_a_row(x):
    """the grid has one program too few: the last row is not written"""
    return _looped(x, "grid")


@mutant("tail")
def one_block(x):
    """only the first block of columns is done"""
    return _looped(x, "one block")


@mutant("overflow")
def first_maximum(x):
    """the maximum is that of the first tile of columns"""
    return _looped(x, "first maximum")


@mutant("accumulator")
def last_sum(x):
    """the denominator is that of the last tile of columns: `l =` for `l +=`"""
    return _looped(x, "last sum")


@mutant("special")
def nan_skipped(x):
    """a NaN is lost in tl.maximum, which returns its other operand"""
    return _looped(x, "nan")


@triton.jit
def _persistent_kernel(x_ptr, y_ptr, x_row, x_col, rows, cols, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    inside = col < cols
    step = tl.num_programs(0)
    if FAULT == "programs":
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


@mutant("tail")
def programs_hard_coded(x):
    """a persistent kernel steps by a fixed number of programs, more than the grid has: rows between are not written"""
    return _persistent(x, "programs")
