"""Gradients of layer norm. With r = 1 / sqrt(variance + eps), n = (x - mean) * r, g = dy * weight:
dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum over rows of dy * n, dbias = sum over rows of dy.

naive: dx by one thread per row, dweight and dbias by one thread per column, both of any length [apex2018]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [apex2018]
block: dx by one block per row, its threads reading neighbours; the warps' sums meet in shared memory [apex2018]
partials: one launch for all: a block holds row after row and sums what it saw of them, one part each [apex2018]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
persistent: partials in accesses of 16 bytes, several short rows per block; the next rows come meanwhile [apex2018]
column_blocks: the statistics of the rows first; then a thread goes down 16 bytes of columns and needs no other
  [apex2018]
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
from touchstone.backends.signatures.layer_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

# Statistics of a row, as lib/norms_backward.py takes them.


@functools.cache
def _from_memory(sum_over):
    @cuda.jit(device=True)
    def statistics(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, row, first, step, eps):
        sums = cuda.local.array(3, float32)  # of (x - mean)^2, g, g * (x - mean)
        total = cuda.local.array(1, float32)
        cols, count = uint64(x.shape[1]), float32(x.shape[1])
        total[0] = float32(0)
        if not has_mean:
            col = first
            while col < cols:
                total[0] += float32(x[row, col])
                col += step
            sum_over(total, 0)
        mean = given_mean[row] if has_mean else total[0] / count

        sums[0] = sums[1] = sums[2] = float32(0)
        col = first
        while col < cols:
            centred = float32(x[row, col]) - mean
            g = float32(dy[row, col]) * float32(weight[col])
            sums[0] += centred * centred
            sums[1] += g
            sums[2] += g * centred
            col += step
        sum_over(sums, 1)
        rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
        return mean, rstd, sums[1] / count, sums[2] * rstd / count

    return statistics


@cuda.jit(device=True)
def _of_warp(values, g, given_mean, given_rstd, has_mean, has_rstd, row, cols, eps):
    total, square, shift, dot, count = float32(0), float32(0), float32(0), float32(0), float32(cols)
    for i in range(HELD):
        total += values[i]
    mean = given_mean[row] if has_mean else warp_sum(total) / count
    for i in range(HELD):
        values[i] -= mean
        if uint32(i * 32 + cuda.threadIdx.x) < cols:
            square += values[i] * values[i]
        shift += g[i]
        dot += g[i] * values[i]
    square = warp_sum(square)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    return mean, rstd, warp_sum(shift) / count, warp_sum(dot) * rstd / count


@cuda.jit(device=True)
def _of_block(x, weight, dy, values, slope, given_mean, given_rstd, has_mean, has_rstd, row, eps, turn):
    sums = cuda.local.array(3, float32)  # of (x - mean)^2, g, g * (x - mean)
    total = cuda.local.array(1, float32)
    cols, count = uint32(x.shape[1]), float32(x.shape[1])
    total[0] = float32(0)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        values[i] = float32(x[row, col]) if col < cols else float32(0)
        slope[i] = float32(dy[row, col]) if col < cols else float32(0)
        total[0] += values[i]
    if not has_mean:
        block_sums(total, turn)
        turn = 1 - turn
    mean = given_mean[row] if has_mean else total[0] / count

    sums[0] = sums[1] = sums[2] = float32(0)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < cols:
            g = slope[i] * float32(weight[col])
            values[i] -= mean
            sums[0] += values[i] * values[i]
            sums[1] += g
            sums[2] += g * values[i]
    block_sums(sums, turn)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
    return rstd, sums[1] / count, sums[2] * rstd / count, 1 - turn


@variant()
def naive(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory three times. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        thread_per_row(_from_memory, (x, weight, dy, mean, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def warp(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [apex2018].
    """
    _, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, WARP_COLS, "warp")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        warp_per_row(_of_warp, (x, weight, dy, mean, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def block(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory twice at least. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        block_per_row(_from_memory, (x, weight, dy, mean, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def partials(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [apex2018].
    """
    _, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, BLOCK_COLS, "block")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        rows_in_registers(_of_block, (x, weight, dy, mean, rstd), eps, *outputs, by_atomics=False)
    return outputs


@variant(needs="shuffles", deterministic=False)
def atomics(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    The order of the additions to dweight and dbias, and so their rounding, changes from call to call. Declines more
    than 8192 columns: the registers of one block. Source: [apex2018].
    """
    _, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, BLOCK_COLS, "block")
    outputs = empty_outputs(x)
    if outputs[0].numel():
        rows_in_registers(_of_block, (x, weight, dy, mean, rstd), eps, *outputs, by_atomics=True)
    return outputs


@variant(needs="shuffles")
def persistent(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Declines more than 8192 columns, 4096 of float32: the registers of one block. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        by_persistent_blocks((x, weight, dy, mean, rstd), eps, *outputs)
    return outputs


@variant(needs="shuffles")
def column_blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None -> dx like x, dweight, dbias (cols,).

    Takes any number of columns; x and dy come from memory twice. Source: [apex2018].
    """
    checked_sizes(x, weight, dy, mean, rstd)
    outputs = empty_outputs(x)
    if outputs[0].numel():
        in_column_blocks((x, weight, dy, mean, rstd), eps, *outputs)
    return outputs
