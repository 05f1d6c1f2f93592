"""Sums, maxima or minima along an axis of a matrix.

warp: a warp to an output, its lanes along the reduced axis [luitjens2014]
block: a block to an output: long rows have more threads, and fewer outputs fill the GPU [luitjens2014]
partials: a thread to an output, neighbours to neighbours, as columns want it; several blocks share the reduced axis,
  and another launch combines what they found [apex2018]
vectorised: a thread loads 16 bytes of neighbours at a time, of one output or of as many outputs; a short row has a
  warp, a long one a block [luitjens2013]
"""

import torch

from touchstone.backends.cupy.lib.norms import resident, threads, vector_width
from touchstone.backends.cupy.lib.rows import blocks, warp_grid
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.reduce_rows import checked
from touchstone.backends.variants import variant

_module = Module(__file__, "reduce_rows.cu")


@variant()
def warp(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        operands = (x, y, outputs, each, *seen.stride(), number)
        _module.launch("reduce_rows_warp", *warp_grid(outputs), *operands, dtype=x.dtype)
    return y


@variant()
def block(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,). Declines more than 2^31 - 1 outputs. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        operands = (x, y, each, *seen.stride(), number)
        _module.launch("reduce_rows_block", blocks(outputs), threads(max(each, 1)), *operands, dtype=x.dtype)
    return y


@variant()
def partials(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [apex2018]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        across = -(-outputs // 32)
        parts = max(1, min(-(-each // 64), -(-resident(x, 8) // across), 65535))
        results = x.new_empty((parts, outputs), dtype=torch.float32)
        operands = (x, results, outputs, each, *seen.stride(), number)
        _module.launch("reduce_rows_partials", (across, parts), (32, 8), *operands, dtype=x.dtype)
        _module.launch("reduce_rows_finish", -(-outputs // 128), 128, results, y, outputs, parts, number, dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,).

    Rows that are not whole 16-byte vectors are read an element at a time. Source: [luitjens2013].
    """
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    along, across = vector_width(seen), vector_width(seen.t())
    if not outputs or max(along, across) == 1:
        return (warp if seen.stride(1) == 1 else partials)(x, axis=axis, function=function)
    y = x.new_empty(outputs)
    if along > 1:
        grid, block = (blocks(outputs), 256) if each > 32 * 8 * along else (blocks(-(-outputs // 8)), (32, 8))
        operands = (x, y, outputs, each, seen.stride(0), number)
        _module.launch("reduce_rows_vectorised", grid, block, *operands, dtype=x.dtype, VECTOR=along)
        return y
    columns = -(-outputs // (32 * across))
    parts = max(1, min(-(-each // 64), -(-resident(x, 4) // columns), 65535))
    results = x.new_empty((parts, outputs), dtype=torch.float32)
    operands, grid = (x, results, outputs, each, seen.stride(1), number), (columns, parts)
    _module.launch("reduce_rows_vectorised_partials", grid, (32, 8), *operands, dtype=x.dtype, VECTOR=across)
    _module.launch("reduce_rows_finish", -(-outputs // 128), 128, results, y, outputs, parts, number, dtype=x.dtype)
    return y
