"""Sums, maxima or minima along an axis of a matrix.

looped: a program to some outputs, for which it walks along the reduced axis in tiles [tillet2019]
partials: several programs share the reduced axis, and another launch combines what they found [apex2018]
"""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.reduce_rows import checked
from touchstone.backends.sizes import ceil_div
from touchstone.backends.triton.lib.combining import combine, neutral, reduced
from touchstone.backends.triton.lib.rows import grid_programs
from touchstone.backends.variants import variant


@triton.jit
def _over(
    x_ptr,
    output,
    outputs,
    first,
    last,
    x_output,
    x_step,
    FUNCTION: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of some outputs, over the elements from `first` to `last` of each."""
    acc = tl.full((OUTPUTS, BLOCK), neutral(FUNCTION), tl.float32)
    for start in range(first, last, BLOCK):
        i = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = (output[:, None] < outputs) & (i[None, :] < last)
        offset = output[:, None] * x_output + i[None, :] * x_step
        x = tl.load(x_ptr + offset, mask=inside, other=neutral(FUNCTION)).to(tl.float32)
        acc = combine(acc, x, FUNCTION)
    return reduced(acc, FUNCTION, 1)


@triton.jit
def _looped_kernel(
    x_ptr, y_ptr, outputs, each, x_output, x_step, FUNCTION: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr
):
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    y = _over(x_ptr, output, outputs, 0, each, x_output, x_step, FUNCTION, OUTPUTS, BLOCK)
    tl.store(y_ptr + output, y.to(y_ptr.dtype.element_ty), mask=output < outputs)


def _tile(seen: torch.Tensor) -> dict[str, int]:
    """Few outputs by many elements where elements are neighbours, else the other way round."""
    along = seen.stride(1) <= seen.stride(0)
    return {"OUTPUTS": 4 if along else 64, "BLOCK": 256 if along else 16, "num_warps": 4}


@variant()
def looped(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [tillet2019]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y, tile = x.new_empty(outputs), _tile(seen)
    if outputs:
        grid = (ceil_div(outputs, tile["OUTPUTS"]),)
        _looped_kernel[grid](x, y, outputs, each, *seen.stride(), FUNCTION=number, **tile)
    return y


@triton.jit(do_not_specialize=["length"])
def _partials_kernel(
    x_ptr,
    partial_ptr,
    outputs,
    each,
    length,
    x_output,
    x_step,
    FUNCTION: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    # In whole tiles: that `first` is a multiple of one lets Triton load 16 bytes at once.
    first = tl.program_id(1).to(tl.int64) * length * BLOCK
    last = tl.minimum(first + length * BLOCK, each)
    found = _over(x_ptr, output, outputs, first, last, x_output, x_step, FUNCTION, OUTPUTS, BLOCK)
    tl.store(partial_ptr + tl.program_id(1).to(tl.int64) * outputs + output, found, mask=output < outputs)


@triton.jit(do_not_specialize=["parts"])
def _finish_kernel(partial_ptr, y_ptr, outputs, parts, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    output = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.full((BLOCK,), neutral(FUNCTION), tl.float32)
    for _ in range(parts):  # a fixed order: the same bits in every run
        acc = combine(acc, tl.load(partial_ptr + output, mask=output < outputs, other=0.0), FUNCTION)
        partial_ptr += outputs
    tl.store(y_ptr + output, acc.to(y_ptr.dtype.element_ty), mask=output < outputs)


@variant()
def partials(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [apex2018]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y, tile = x.new_empty(outputs), _tile(seen)
    if outputs:
        groups = ceil_div(outputs, tile["OUTPUTS"])
        tiles = max(ceil_div(each, tile["BLOCK"]), 1)
        length = ceil_div(tiles, max(1, min(tiles, ceil_div(grid_programs(x, 8), groups), 65535)))
        parts = ceil_div(tiles, length)
        partial = x.new_empty((parts, outputs), dtype=torch.float32)
        operands = (x, partial, outputs, each, length, *seen.stride())
        _partials_kernel[(groups, parts)](*operands, FUNCTION=number, **tile)
        grid = (ceil_div(outputs, 128),)
        _finish_kernel[grid](partial, y, outputs, parts, FUNCTION=number, BLOCK=128, num_warps=4)
    return y
