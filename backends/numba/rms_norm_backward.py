"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

naive: dx by one thread per row, dweight by one thread per column, both of any length [hsu2024]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [hsu2024]
block: dx by one block per row, its threads reading neighbours; the warps' sums meet in shared memory [hsu2024]
partials: one launch for both: a block holds row after row and sums what it saw of them, one part each [hsu2024]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
persistent: partials in accesses of 16 bytes, several short rows per block; the next rows come meanwhile [hsu2024]
column_blocks: the statistics of the rows first; then a thread goes down 16 bytes of columns and needs no other
  [hsu2024]
"""

import functools
import math

import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.norms_backward import (
    BLOCK_COLS,
    HELD,
    KEPT,
    block_per_row,
    block_sums,
    rows_in_registers,
    thread_per_row,
    warp_per_row,
)
from touchstone.backends.numba.lib.norms_backward_vectors import by_persistent_blocks, in_column_blocks
from touchstone.backends.numba.lib.reductions import WARP_COLS, at_most, warp_sum
from touchstone.backends.signatures.rms_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

# Statistics of a row, as lib/norms_backward.py takes them.


@functools.cache
def _from_memory(sum_over):
    @cuda.jit(device=True)
    def statistics(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, row, first, step, eps):
        sums = cuda.local.array(2, float32)  # of x^2, g * x
        cols, count = uint64(x.shape[1]), float32(x.shape[1])
        sums[0] = sums[1] = float32(0)
        col = first
        while col < cols:
            value = float32(x[row, col])
            sums[0] += value * value
            sums[1] += float32(dy[row, col]) * float32(weight[col]) * value
            col += step
        sum_over(sums, 0)
        rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
        return float32(0), rstd, float32(0), sums[1] * rstd / count

    return statistics


@cuda.jit(device=True)
def _of_warp(values, g, given_mean, given_rstd, has_mean, has_rstd, row, cols, eps):
    square, dot, count = float32(0), float32(0), float32(cols)
    for i in range(HELD):
        square += values[i] * values[i]
        dot += g[i] * values[i]
    square = warp_sum(square)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    return float32(0), rstd, float32(0), warp_sum(dot) * rstd / count


@cuda.jit(device=True)
def _of_block(x, weight, dy, values, slope, given_mean, given_rstd, has_mean, has_rstd, row, eps, turn):
    sums = cuda.local.array(2, float32)  # of x^2, g * x
    cols, count = uint32(x.shape[1]), float32(x.shape[1])
    sums[0] = sums[1] = float32(0)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < cols:
            values[i] = float32(x[row, col])
            slope[i] = float32(dy[row, col])
            sums[0] += values[i] * values[i]
            sums[1] += slope[i] * float32(weight[col]) * values[i]
    block_sums(sums, turn)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
    return rstd, float32(0), sums[1] * rstd / count, 1 - turn


@variant()
def naive(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; neighbouring threads read addresses one row apart. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        thread_per_row(_from_memory, (x, weight, dy, None, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def warp(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [hsu2024].
    """
    _, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, WARP_COLS, "warp")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        warp_per_row(_of_warp, (x, weight, dy, None, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def block(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; x and dy come from memory twice at least. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        block_per_row(_from_memory, (x, weight, dy, None, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [hsu2024].
    """
    _, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, BLOCK_COLS, "block")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        rows_in_registers(_of_block, (x, weight, dy, None, rstd), eps, *outputs, by_atomics=False)
    return outputs


@variant(needs="shuffles", deterministic=False)
def atomics(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    The order of the additions to dweight, and so its rounding, changes from call to call. Declines more than 8192
    columns: the registers of one block. Source: [hsu2024].
    """
    _, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, BLOCK_COLS, "block")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        rows_in_registers(_of_block, (x, weight, dy, None, rstd), eps, *outputs, by_atomics=True)
    return outputs


@variant(needs="shuffles")
def persistent(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns, 4096 of float32: the registers of one block. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        by_persistent_blocks((x, weight, dy, None, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def column_blocks(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; x and dy come from memory twice. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        in_column_blocks((x, weight, dy, None, rstd), eps, *outputs)
    return outputs
