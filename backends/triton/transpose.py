"""Transpose: y[c, r] = x[r, c].

naive: a program for neighbouring elements of x, which lie rows apart in y: short writes [harris2013]
tiled: a program a tile, read along rows of x and written along rows of y; the compiler passes it through shared memory
  on the way [harris2013]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import variant


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _naive_kernel(x_ptr, y_ptr, rows, cols, stride_xm, stride_xn, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, col = index // cols, index % cols
    inside = row < rows
    x = tl.load(x_ptr + row * stride_xm + col * stride_xn, mask=inside)
    tl.store(y_ptr + col * rows + row, x, mask=inside)


@variant()
def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if y.numel():
        _naive_kernel[(ceil_div(y.numel(), 1024),)](x, y, rows, cols, *x.stride(), BLOCK=1024)
    return y


@triton.jit(do_not_specialize_on_alignment=["stride_xn"])
def _tiled_kernel(x_ptr, y_ptr, rows, cols, stride_xm, stride_xn, SIDE: tl.constexpr):
    tiles = tl.cdiv(cols, SIDE)
    row = (tl.program_id(0) // tiles).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    col = (tl.program_id(0) % tiles).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    inside = (row[:, None] < rows) & (col[None, :] < cols)
    x = tl.load(x_ptr + row[:, None] * stride_xm + col[None, :] * stride_xn, mask=inside)
    tl.store(y_ptr + col[:, None] * rows + row[None, :], tl.trans(x), mask=tl.trans(inside))


@variant()
def tiled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if y.numel():
        side = 128 if x.element_size() == 2 else 64  # whole lines of 128 bytes on both sides, and more of them at once
        grid = (ceil_div(rows, side) * ceil_div(cols, side),)
        _tiled_kernel[grid](x, y, rows, cols, *x.stride(), SIDE=side, num_warps=8)
    return y
