"""Gradient of softmax from its result: dx = y * (dy - sum(y * dy)).

onerow: one program holds a row of y and of dy in registers, so each is read once [oneflow2021]
halfregs: the same in their own 16 bits, converted twice, so that a program holds 32768 columns of both [nvidia2025]
looped: tiles of a row in two passes, the sum and the write, so a row may have any length [oneflow2021]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.backends.sizes import next_power_of_2
from touchstone.backends.triton.lib.rows import halfregs_block, multiple, opaque, row_unit, warps
from touchstone.backends.variants import HALF, variant


@triton.jit(do_not_specialize_on_alignment=["stride_yn", "stride_dyn"])
def _onerow_kernel(
    y_ptr, dy_ptr, dx_ptr, stride_ym, stride_yn, stride_dym, stride_dyn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_ym, stride_dym, cols = multiple(stride_ym, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * stride_ym
    dy_ptr += row * stride_dym
    dx_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    y = tl.load(y_ptr + col.to(tl.int64) * stride_yn, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0).to(tl.float32)
    delta = tl.sum(y * dy, axis=0)
    tl.store(dx_ptr + col, y * (dy - delta), mask=inside)


@variant()
def onerow(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols). Declines over 16384 columns, what one program holds. See [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    if cols > 16384:
        raise Unsupported(f"{cols} columns; one program holds 16384")
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        block = next_power_of_2(cols)
        _onerow_kernel[(rows,)](
            y, dy, dx, *y.stride(), *dy.stride(), cols, BLOCK=block, UNIT=row_unit(y, dy), num_warps=warps(block)
        )
    return dx


@triton.jit(do_not_specialize_on_alignment=["stride_yn", "stride_dyn"])
def _halfregs_kernel(
    y_ptr, dy_ptr, dx_ptr, stride_ym, stride_yn, stride_dym, stride_dyn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_ym, stride_dym, cols = multiple(stride_ym, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * stride_ym
    dy_ptr += row * stride_dym
    dx_ptr += row * cols

    col = tl.arange(0, BLOCK)
    inside = col < cols
    y = tl.load(y_ptr + col.to(tl.int64) * stride_yn, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0)
    delta = tl.sum(y.to(tl.float32) * dy.to(tl.float32), axis=0)
    y = opaque(y)
    dy = opaque(dy)
    tl.store(dx_ptr + col, y.to(tl.float32) * (dy.to(tl.float32) - delta), mask=inside)


@variant(dtypes=HALF)
def halfregs(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols). Declines float32 and more than 32768 columns. Source: [nvidia2025].

    At 32768 columns y and dy are read once, where `looped` reads them twice (an H200,
    bfloat16: 0.98 of a copy's rate against 0.61).
    """
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    block = halfregs_block(y)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        _halfregs_kernel[(rows,)](
            y, dy, dx, *y.stride(), *dy.stride(), cols, BLOCK=block, UNIT=row_unit(y, dy), num_warps=warps(block, 1024)
        )
    return dx


@triton.jit(do_not_specialize_on_alignment=["stride_yn", "stride_dyn"])
def _looped_kernel(
    y_ptr, dy_ptr, dx_ptr, stride_ym, stride_yn, stride_dym, stride_dyn, cols, BLOCK: tl.constexpr, UNIT: tl.constexpr
):
    stride_ym, stride_dym, cols = multiple(stride_ym, UNIT), multiple(stride_dym, UNIT), multiple(cols, UNIT)
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * stride_ym
    dy_ptr += row * stride_dym
    dx_ptr += row * cols

    delta = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        y = tl.load(y_ptr + col.to(tl.int64) * stride_yn, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0).to(tl.float32)
        delta += y * dy
    delta = tl.sum(delta, axis=0)

    for start in range(0, cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        inside = col < cols
        y = tl.load(y_ptr + col.to(tl.int64) * stride_yn, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + col.to(tl.int64) * stride_dyn, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + col, y * (dy - delta), mask=inside)


@variant()
def looped(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """y, dy (rows, cols) -> dx (rows, cols), any number of columns; y and dy are read twice. Source: [oneflow2021]."""
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        block = min(next_power_of_2(cols), 4096)
        _looped_kernel[(rows,)](
            y, dy, dx, *y.stride(), *dy.stride(), cols, BLOCK=block, UNIT=row_unit(y, dy), num_warps=warps(block)
        )
    return dx
