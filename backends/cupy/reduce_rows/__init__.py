"""Sums, maxima or minima along an axis of a matrix.

warp: a warp to an output, its lanes along the reduced axis [luitjens2014]
block: a block to an output: long rows have more threads, and fewer outputs fill the GPU [luitjens2014]
partials: a thread to an output, neighbours to neighbours, as columns want it; several blocks share the reduced axis,
  and another launch combines what they found [apex2018]
"""

import torch

from touchstone.backends.cupy.lib.norms import resident, threads
from touchstone.backends.cupy.lib.rows import blocks, warp_grid
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.reduce_rows import checked

_module = Module(__file__, "reduce_rows.cu")


def warp(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,); any sizes and strides. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        operands = (x, y, outputs, each, *seen.stride(), number)
        _module.launch("reduce_rows_warp", *warp_grid(outputs), *operands, dtype=x.dtype)
    return y


def block(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """x (rows, cols) -> y (rows,) or (cols,). Declines more than 2^31 - 1 outputs. Source: [luitjens2014]."""
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        operands = (x, y, each, *seen.stride(), number)
        _module.launch("reduce_rows_block", blocks(outputs), threads(max(each, 1)), *operands, dtype=x.dtype)
    return y


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
