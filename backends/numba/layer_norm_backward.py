"""Gradients of layer norm. With r = 1 / sqrt(variance + eps), n = (x - mean) * r, g = dy * weight:
dx = r * (g - mean(g) - n * mean(g * n)), dweight = sum over rows of dy * n, dbias = sum over rows of dy.

naive: dx by one thread per row, dweight and dbias by one thread per column, both of any length [apex2018]
block: dx by one block per row, its threads reading neighbours; the warps' sums meet in shared memory [apex2018]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [apex2018]
partials: one launch for all: a block holds row after row and sums what it saw of them, one part each [apex2018]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
persistent: partials in accesses of 16 bytes, several short rows per block; the next rows come meanwhile [apex2018]
column_blocks: the statistics of the rows first; then a thread goes down 16 bytes of columns and needs no other
  [apex2018]
"""

import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.norms_backward import (
    BLOCK_COLS,
    KEPT,
    block_sums,
    by_persistent_blocks,
    column_sums,
    given,
    in_column_blocks,
    resident_grid,
)
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    at_most,
    block_threads,
    checked_grid,
    thread_grid,
    warp_grid,
    warp_sum,
    wide_jit,
)
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.layer_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32


@cuda.jit
def _naive(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, statistics, eps):
    # mean and rstd of every row go to `statistics` (2, rows).
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols, count = uint64(x.shape[1]), float32(x.shape[1])
    total, square, shift, dot = float32(0), float32(0), float32(0), float32(0)
    if not has_mean:
        col = uint64(0)
        while col < cols:
            total += float32(x[row, col])
            col += uint64(1)
    mean = given_mean[row] if has_mean else total / count

    col = uint64(0)
    while col < cols:
        centred = float32(x[row, col]) - mean
        g = float32(dy[row, col]) * float32(weight[col])
        square += centred * centred
        shift += g
        dot += g * centred
        col += uint64(1)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    shift /= count
    dot = dot * rstd / count

    col = uint64(0)
    while col < cols:
        normed = (float32(x[row, col]) - mean) * rstd
        dx[row, col] = rstd * (float32(dy[row, col]) * float32(weight[col]) - shift - normed * dot)
        col += uint64(1)
    statistics[0, row] = mean
    statistics[1, row] = rstd


@cuda.jit
def _columns(x, dy, statistics, dweight, dbias):
    # dweight and dbias by one thread per column.
    col = uint64(cuda.grid(1))
    if col >= uint64(x.shape[1]):
        return
    dw, db = float32(0), float32(0)
    row = uint64(0)
    while row < uint64(x.shape[0]):
        slope = float32(dy[row, col])
        dw += slope * (float32(x[row, col]) - statistics[0, row]) * statistics[1, row]
        db += slope
        row += uint64(1)
    dweight[col] = dw
    dbias[col] = db


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
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        statistics_given = given(mean, rstd, statistics[0])
        launch(_naive, *thread_grid(rows), x, weight, dy, *statistics_given, dx, statistics, np.float32(eps))
        across = block_threads(cols)
        launch(_columns, -(-cols // across), across, x, dy, statistics, dweight, dbias)
    return dx, dweight, dbias


@cuda.jit
def _block(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, statistics, eps):
    sums = cuda.local.array(3, float32)  # of (x - mean)^2, g, g * (x - mean)
    total = cuda.local.array(1, float32)
    row = uint64(cuda.blockIdx.x)
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    cols, count = uint64(x.shape[1]), float32(x.shape[1])

    total[0] = float32(0)
    if not has_mean:
        col = first
        while col < cols:
            total[0] += float32(x[row, col])
            col += step
        block_sums(total, 0)
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
    block_sums(sums, 1)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
    shift = sums[1] / count
    dot = sums[2] * rstd / count

    col = first
    while col < cols:
        normed = (float32(x[row, col]) - mean) * rstd
        dx[row, col] = rstd * (float32(dy[row, col]) * float32(weight[col]) - shift - normed * dot)
        col += step
    if cuda.threadIdx.x == 0:
        statistics[0, row] = mean
        statistics[1, row] = rstd


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
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        statistics_given = given(mean, rstd, statistics[0])
        across = block_threads(cols)
        launch(_block, checked_grid(rows), across, x, weight, dy, *statistics_given, dx, statistics, np.float32(eps))
        launch(_columns, -(-cols // across), across, x, dy, statistics, dweight, dbias)
    return dx, dweight, dbias


@cuda.jit
def _warp(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, statistics, eps):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    centred = cuda.local.array(_HELD, float32)
    g = cuda.local.array(_HELD, float32)
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    cols, count = uint32(x.shape[1]), float32(x.shape[1])

    total = float32(0)
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        centred[i] = float32(x[row, col]) if col < cols else float32(0)
        g[i] = float32(dy[row, col]) * float32(weight[col]) if col < cols else float32(0)
        total += centred[i]
    mean = given_mean[row] if has_mean else warp_sum(total) / count

    square, shift, dot = float32(0), float32(0), float32(0)
    for i in range(_HELD):
        centred[i] -= mean
        if uint32(i * 32 + cuda.threadIdx.x) < cols:
            square += centred[i] * centred[i]
        shift += g[i]
        dot += g[i] * centred[i]
    square = warp_sum(square)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    shift = warp_sum(shift) / count
    dot = warp_sum(dot) * rstd / count

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            dx[row, col] = rstd * (g[i] - shift - centred[i] * rstd * dot)
    if cuda.threadIdx.x == 0:
        statistics[0, row] = mean
        statistics[1, row] = rstd


@cuda.jit
def _column_blocks(x, dy, statistics, dweight, dbias):
    # dweight and dbias by a block of 32 columns, its warps sharing the rows.
    sums = cuda.local.array(2, float32)
    sums[0] = sums[1] = float32(0)
    col = uint64(cuda.blockIdx.x) * uint64(32) + uint64(cuda.threadIdx.x)
    if col < uint64(x.shape[1]):
        row = uint64(cuda.threadIdx.y)
        while row < uint64(x.shape[0]):
            slope = float32(dy[row, col])
            sums[0] += slope * (float32(x[row, col]) - statistics[0, row]) * statistics[1, row]
            sums[1] += slope
            row += uint64(cuda.blockDim.y)
    column_sums(sums)
    if cuda.threadIdx.y == 0 and col < uint64(x.shape[1]):
        dweight[col] = sums[0]
        dbias[col] = sums[1]


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
    rows, cols = checked_sizes(x, weight, dy, mean, rstd)
    at_most(cols, WARP_COLS, "warp")
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        statistics_given = given(mean, rstd, statistics[0])
        launch(_warp, *warp_grid(rows), x, weight, dy, *statistics_given, dx, statistics, np.float32(eps))
        launch(_column_blocks, -(-cols // 32), (32, min(rows, 32)), x, dy, statistics, dweight, dbias)
    return dx, dweight, dbias


@cuda.jit(device=True)
def _rows_in_registers(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, dweight, dbias, eps):
    """dx of every gridDim.x-th row, and the sums of those rows in `dweight` and `dbias` (KEPT,)."""
    centred = cuda.local.array(KEPT, float32)
    slope = cuda.local.array(KEPT, float32)
    sums = cuda.local.array(3, float32)  # of (x - mean)^2, g, g * (x - mean)
    total = cuda.local.array(1, float32)
    cols, count = uint32(x.shape[1]), float32(x.shape[1])
    for i in range(KEPT):
        dweight[i] = dbias[i] = float32(0)
    turn = 0
    row = uint64(cuda.blockIdx.x)
    while row < uint64(x.shape[0]):
        total[0] = float32(0)
        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            centred[i] = float32(x[row, col]) if col < cols else float32(0)
            slope[i] = float32(dy[row, col]) if col < cols else float32(0)
            total[0] += centred[i]
        if not has_mean:
            block_sums(total, turn)
            turn = 1 - turn
        mean = given_mean[row] if has_mean else total[0] / count

        sums[0] = sums[1] = sums[2] = float32(0)
        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            if col < cols:
                g = slope[i] * float32(weight[col])
                centred[i] -= mean
                sums[0] += centred[i] * centred[i]
                sums[1] += g
                sums[2] += g * centred[i]
        block_sums(sums, turn)
        turn = 1 - turn
        rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
        shift = sums[1] / count
        dot = sums[2] * rstd / count

        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            if col < cols:
                normed = centred[i] * rstd
                dx[row, col] = rstd * (slope[i] * float32(weight[col]) - shift - normed * dot)
                dweight[i] += slope[i] * normed
                dbias[i] += slope[i]
        row += uint64(cuda.gridDim.x)


@wide_jit
def _partials(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, partial, eps):
    # The sums of a block are one row of `partial` (2, blocks, cols): dweight's, then dbias's.
    dweight = cuda.local.array(KEPT, float32)
    dbias = cuda.local.array(KEPT, float32)
    _rows_in_registers(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, dweight, dbias, eps)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < uint32(x.shape[1]):
            partial[0, uint32(cuda.blockIdx.x), col] = dweight[i]
            partial[1, uint32(cuda.blockIdx.x), col] = dbias[i]


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
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        parts, across = resident_grid(x)
        partial = torch.empty((2, parts, cols), dtype=torch.float32, device=x.device)
        statistics_given = given(mean, rstd, partial[0, 0])
        launch(_partials, parts, across, x, weight, dy, *statistics_given, dx, partial, np.float32(eps))
        _reduce(partial, dweight, dbias)
    return dx, dweight, dbias


@wide_jit
def _atomics(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, total, eps):
    # The sums of all blocks meet in `total` (2, 1, cols).
    dweight = cuda.local.array(KEPT, float32)
    dbias = cuda.local.array(KEPT, float32)
    _rows_in_registers(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, dweight, dbias, eps)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < uint32(x.shape[1]):
            cuda.atomic.add(total, (0, 0, col), dweight[i])
            cuda.atomic.add(total, (1, 0, col), dbias[i])


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
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        parts, across = resident_grid(x)
        total = torch.zeros((2, 1, cols), dtype=torch.float32, device=x.device)
        statistics_given = given(mean, rstd, total[0, 0])
        launch(_atomics, parts, across, x, weight, dy, *statistics_given, dx, total, np.float32(eps))
        _reduce(total, dweight, dbias)
    return dx, dweight, dbias


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
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        _reduce(by_persistent_blocks(x, weight, dy, mean, rstd, dx, eps, centred=True), dweight, dbias)
    return dx, dweight, dbias


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
    dx, dweight, dbias = empty_outputs(x)
    if dx.numel():
        _reduce(in_column_blocks(x, weight, dy, mean, rstd, dx, eps, centred=True), dweight, dbias)
    return dx, dweight, dbias


@cuda.jit
def _summed(partial, dweight, dbias):
    # The sums of `partial` (2, parts, cols) over the parts, always in the same order.
    sums = cuda.local.array(2, float32)
    sums[0] = sums[1] = float32(0)
    col = uint32(cuda.blockIdx.x * 32 + cuda.threadIdx.x)
    if col < uint32(partial.shape[2]):
        part = uint64(cuda.threadIdx.y)
        while part < uint64(partial.shape[1]):
            sums[0] += partial[0, part, col]
            sums[1] += partial[1, part, col]
            part += uint64(cuda.blockDim.y)
    column_sums(sums)
    if cuda.threadIdx.y == 0 and col < uint32(partial.shape[2]):
        dweight[col] = sums[0]
        dbias[col] = sums[1]


def _reduce(partial: torch.Tensor, dweight: torch.Tensor, dbias: torch.Tensor) -> None:
    """Sum partial sums (2, parts, cols) over parts into dweight and dbias, always in the same order."""
    _, parts, cols = partial.shape
    launch(_summed, -(-cols // 32), (32, min(parts, 32)), partial, dweight, dbias)
