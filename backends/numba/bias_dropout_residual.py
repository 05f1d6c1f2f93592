"""y = dropout(x + bias) + residual, on matrices; the index of an element is row·cols + col.

unfused: a launch for each of the three steps, with x + bias and its dropout in memory between them [vaswani2017]
fused: one launch, in which they stay in registers: two matrices are read and one is written [shoeybi2019]
vectorised: the same for 16 bytes of each matrix in one access, all of one row [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.lib.philox import dropped_out, philox, word_of
from touchstone.backends.numba.lib.pointwise import LANES, THREADS, in_lines, load_line, place_of_vector, store_line
from touchstone.backends.numba.lib.reductions import checked_grid, for_rows
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._dropout import in_one_run
from touchstone.backends.signatures.bias_dropout_residual import empty_output
from touchstone.backends.variants import variant

# bias comes as (rows, cols), every row the same; where there is none it is x, and unused.


@cuda.jit
def _bias(x, bias, biased, h):
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    cols = uint64(h.shape[1])
    if e < uint64(h.shape[0]) * cols:
        row, col = e // cols, e % cols
        h[row, col] = float32(x[row, col]) + (float32(bias[row, col]) if biased else float32(0))


@cuda.jit
def _dropout(h, dropped, threshold, scale, seed, offset):
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    cols = uint64(h.shape[1])
    if e < uint64(h.shape[0]) * cols:
        word = word_of(e, uint64(seed), uint64(offset))
        dropped[e // cols, e % cols] = dropped_out(h[e // cols, e % cols], word, threshold, scale)


@cuda.jit
def _residual(dropped, residual, y):
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    cols = uint64(y.shape[1])
    if e < uint64(y.shape[0]) * cols:
        row, col = e // cols, e % cols
        y[row, col] = dropped[row, col] + float32(residual[row, col])


@variant()
def unfused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols); any strides.

    What lies between the steps is float32. Source: [vaswani2017].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    if y.numel():
        h, dropped = (torch.empty(x.shape, dtype=torch.float32, device=x.device) for _ in range(2))
        grid = checked_grid(-(-y.numel() // 256))
        launch(_bias, grid, 256, x, *_shift(bias, x), h)
        launch(_dropout, grid, 256, h, dropped, rule.threshold, np.float32(rule.scale), rule.seed, rule.offset)
        launch(_residual, grid, 256, dropped, residual, y)
    return y


@cuda.jit
def _fused(x, bias, biased, residual, y, threshold, scale, seed, offset):
    # A thread for four elements, which may belong to two rows or more.
    block = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    words = philox(block, uint64(seed), uint64(offset))
    cols = uint64(y.shape[1])
    for i in range(4):
        e = uint64(4) * block + uint64(i)
        if e < uint64(y.shape[0]) * cols:
            row, col = e // cols, e % cols
            h = float32(x[row, col]) + (float32(bias[row, col]) if biased else float32(0))
            y[row, col] = dropped_out(h, words[i], threshold, scale) + float32(residual[row, col])


@variant()
def fused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols); any strides.

    Source: [shoeybi2019].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    if y.numel():
        grid = checked_grid(-(-y.numel() // 1024))
        numbers = (rule.threshold, np.float32(rule.scale), rule.seed, rule.offset)
        launch(_fused, grid, 256, x, *_shift(bias, x), residual, y, *numbers)
    return y


@cuda.jit
def _vectorised(x, bias, biased, cols, residual, y, threshold, scale, seed, offset):
    # x, bias, residual and y as one line each; a row is whole vectors.
    line, first = place_of_vector(y)
    if line >= uint64(1):
        return
    values, shift, other = (
        cuda.local.array(LANES, float32),
        cuda.local.array(LANES, float32),
        cuda.local.array(LANES, float32),
    )
    load_line(x, line, first, values, True)
    load_line(residual, line, first, other, True)
    if biased:
        load_line(bias, line, first % uint64(cols), shift, True)
        for i in range(lanes_of(y)):
            values[i] += shift[i]
    for part in range(lanes_of(y) // 4):
        words = philox((first >> uint64(2)) + uint64(part), uint64(seed), uint64(offset))
        for i in range(4):
            at = 4 * part + i
            values[at] = dropped_out(values[at], words[i], threshold, scale) + other[at]
    store_line(values, y, line, first, True)


@variant()
def vectorised(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None, residual (rows, cols) -> y (rows, cols).

    Declines operands that are not contiguous from a multiple of 16 bytes on, and columns that are no multiple of 16
    bytes. Source: [xlite2025].
    """
    y, rule = empty_output(x, bias, residual, p, seed, offset)
    in_one_run(*(operand for operand in (x, bias, residual) if operand is not None))
    lanes = 16 // x.element_size()
    if x.shape[1] % lanes:
        raise Unsupported(f"{x.shape[1]} columns; expected a multiple of {lanes}")
    if y.numel():
        lines = in_lines(*(matrix.view(1, -1) for matrix in (x, residual, y)))
        x, residual, line = lines.matrices
        shift = (x, False) if bias is None else (bias.view(1, -1), True)
        numbers = (rule.threshold, np.float32(rule.scale), rule.seed, rule.offset)
        launch(_vectorised, lines.grid, THREADS, x, *shift, y.shape[1], residual, line, *numbers)
    return y


def _shift(bias: torch.Tensor | None, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    return (x, False) if bias is None else (for_rows(bias, len(x)), True)
