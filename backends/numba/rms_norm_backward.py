"""Gradients of RMS norm. With r = 1 / sqrt(mean x^2 + eps), n = x * r, g = dy * weight:
dx = r * (g - n * mean(g * n)), dweight = sum over rows of dy * n.

naive: dx by one thread per row, dweight by one thread per column, both of any length [hsu2024]
block: dx by one block per row, its threads reading neighbours; the warps' sums meet in shared memory [hsu2024]
warp: dx by a warp that holds a row; the rows of 32 columns shared by the warps of a block [hsu2024]
partials: one launch for both: a block holds row after row and sums what it saw of them, one part each [hsu2024]
atomics: the blocks add their sums to one row by float32 atomics, no partial sums in memory [apex2018]
persistent: partials in accesses of 16 bytes, several short rows per block; the next rows come meanwhile [hsu2024]
column_blocks: the statistics of the rows first; then a thread goes down 16 bytes of columns and needs no other
  [hsu2024]
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
from touchstone.backends.signatures.rms_norm_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_HELD = WARP_COLS // 32


@cuda.jit
def _naive(x, weight, dy, given_rstd, has_rstd, dx, statistics, eps):
    # rstd of every row goes to `statistics` (rows,).
    row = uint64(cuda.grid(1))
    if row >= uint64(x.shape[0]):
        return
    cols, count = uint64(x.shape[1]), float32(x.shape[1])
    square, dot = float32(0), float32(0)
    col = uint64(0)
    while col < cols:
        value = float32(x[row, col])
        square += value * value
        dot += float32(dy[row, col]) * float32(weight[col]) * value
        col += uint64(1)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    dot = dot * rstd / count

    col = uint64(0)
    while col < cols:
        g = float32(dy[row, col]) * float32(weight[col])
        dx[row, col] = rstd * (g - float32(x[row, col]) * rstd * dot)
        col += uint64(1)
    statistics[row] = rstd


@cuda.jit
def _columns(x, dy, statistics, dweight):
    # dweight by one thread per column.
    col = uint64(cuda.grid(1))
    if col >= uint64(x.shape[1]):
        return
    total = float32(0)
    row = uint64(0)
    while row < uint64(x.shape[0]):
        total += float32(dy[row, col]) * float32(x[row, col]) * statistics[row]
        row += uint64(1)
    dweight[col] = total


def naive(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; neighbouring threads read addresses one row apart. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        launch(_naive, *thread_grid(rows), x, weight, dy, *_given(rstd, statistics), dx, statistics, np.float32(eps))
        across = block_threads(cols)
        launch(_columns, -(-cols // across), across, x, dy, statistics, dweight)
    return dx, dweight


@cuda.jit
def _block(x, weight, dy, given_rstd, has_rstd, dx, statistics, eps):
    sums = cuda.local.array(2, float32)  # of x^2, g * x
    row = uint64(cuda.blockIdx.x)
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    cols, count = uint64(x.shape[1]), float32(x.shape[1])

    sums[0] = sums[1] = float32(0)
    col = first
    while col < cols:
        value = float32(x[row, col])
        sums[0] += value * value
        sums[1] += float32(dy[row, col]) * float32(weight[col]) * value
        col += step
    block_sums(sums, 0)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
    dot = sums[1] * rstd / count

    col = first
    while col < cols:
        g = float32(dy[row, col]) * float32(weight[col])
        dx[row, col] = rstd * (g - float32(x[row, col]) * rstd * dot)
        col += step
    if cuda.threadIdx.x == 0:
        statistics[row] = rstd


@variant(needs="shuffles")
def block(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; x and dy come from memory twice at least. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        across = block_threads(cols)
        launch(
            _block,
            checked_grid(rows),
            across,
            x,
            weight,
            dy,
            *_given(rstd, statistics),
            dx,
            statistics,
            np.float32(eps),
        )
        launch(_columns, -(-cols // across), across, x, dy, statistics, dweight)
    return dx, dweight


@cuda.jit
def _warp(x, weight, dy, given_rstd, has_rstd, dx, statistics, eps):
    # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
    values = cuda.local.array(_HELD, float32)
    g = cuda.local.array(_HELD, float32)
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(x.shape[0]):
        return  # a whole warp
    cols, count = uint32(x.shape[1]), float32(x.shape[1])

    square, dot = float32(0), float32(0)
    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        values[i] = float32(x[row, col]) if col < cols else float32(0)
        g[i] = float32(dy[row, col]) * float32(weight[col]) if col < cols else float32(0)
        square += values[i] * values[i]
        dot += g[i] * values[i]
    square = warp_sum(square)
    rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    dot = warp_sum(dot) * rstd / count

    for i in range(_HELD):
        col = uint32(i * 32 + cuda.threadIdx.x)
        if col < cols:
            dx[row, col] = rstd * (g[i] - values[i] * rstd * dot)
    if cuda.threadIdx.x == 0:
        statistics[row] = rstd


@cuda.jit
def _column_blocks(x, dy, statistics, dweight):
    # dweight by a block of 32 columns, its warps sharing the rows.
    sums = cuda.local.array(1, float32)
    sums[0] = float32(0)
    col = uint64(cuda.blockIdx.x) * uint64(32) + uint64(cuda.threadIdx.x)
    if col < uint64(x.shape[1]):
        row = uint64(cuda.threadIdx.y)
        while row < uint64(x.shape[0]):
            sums[0] += float32(dy[row, col]) * float32(x[row, col]) * statistics[row]
            row += uint64(cuda.blockDim.y)
    column_sums(sums)
    if cuda.threadIdx.y == 0 and col < uint64(x.shape[1]):
        dweight[col] = sums[0]


@variant(needs="shuffles")
def warp(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 1024 columns: the registers of one warp. Source: [hsu2024].
    """
    rows, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, WARP_COLS, "warp")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        statistics = torch.empty((rows,), dtype=torch.float32, device=x.device)
        launch(_warp, *warp_grid(rows), x, weight, dy, *_given(rstd, statistics), dx, statistics, np.float32(eps))
        launch(_column_blocks, -(-cols // 32), (32, min(rows, 32)), x, dy, statistics, dweight)
    return dx, dweight


@cuda.jit(device=True)
def _rows_in_registers(x, weight, dy, given_rstd, has_rstd, dx, dweight, eps):
    """dx of every gridDim.x-th row, and the sums of those rows in `dweight` (KEPT,)."""
    values = cuda.local.array(KEPT, float32)
    slope = cuda.local.array(KEPT, float32)
    sums = cuda.local.array(2, float32)  # of x^2, g * x
    cols, count = uint32(x.shape[1]), float32(x.shape[1])
    for i in range(KEPT):
        dweight[i] = float32(0)
    turn = 0
    row = uint64(cuda.blockIdx.x)
    while row < uint64(x.shape[0]):
        sums[0] = sums[1] = float32(0)
        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            if col < cols:
                values[i] = float32(x[row, col])
                slope[i] = float32(dy[row, col])
                sums[0] += values[i] * values[i]
                sums[1] += slope[i] * float32(weight[col]) * values[i]
        block_sums(sums, turn)
        turn = 1 - turn
        rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[0] / count + eps)
        dot = sums[1] * rstd / count

        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            if col < cols:
                normed = values[i] * rstd
                dx[row, col] = rstd * (slope[i] * float32(weight[col]) - normed * dot)
                dweight[i] += slope[i] * normed
        row += uint64(cuda.gridDim.x)


@wide_jit
def _partials(x, weight, dy, given_rstd, has_rstd, dx, partial, eps):
    # The sums of a block are one row of `partial` (blocks, cols).
    dweight = cuda.local.array(KEPT, float32)
    _rows_in_registers(x, weight, dy, given_rstd, has_rstd, dx, dweight, eps)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < uint32(x.shape[1]):
            partial[uint32(cuda.blockIdx.x), col] = dweight[i]


@variant(needs="shuffles")
def partials(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns: the registers of one block. Source: [hsu2024].
    """
    _, cols = checked_sizes(x, weight, dy, rstd)
    at_most(cols, BLOCK_COLS, "block")
    dx, dweight = empty_outputs(x)
    if dx.numel():
        parts, across = resident_grid(x)
        partial = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
        launch(_partials, parts, across, x, weight, dy, *_given(rstd, partial[0]), dx, partial, np.float32(eps))
        _reduce(partial, dweight)
    return dx, dweight


@wide_jit
def _atomics(x, weight, dy, given_rstd, has_rstd, dx, total, eps):
    # The sums of all blocks meet in `total` (1, cols).
    dweight = cuda.local.array(KEPT, float32)
    _rows_in_registers(x, weight, dy, given_rstd, has_rstd, dx, dweight, eps)
    for i in range(KEPT):
        col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
        if col < uint32(x.shape[1]):
            cuda.atomic.add(total, (0, col), dweight[i])


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
    dx, dweight = empty_outputs(x)
    if dx.numel():
        parts, across = resident_grid(x)
        total = torch.zeros((1, cols), dtype=torch.float32, device=x.device)
        launch(_atomics, parts, across, x, weight, dy, *_given(rstd, total[0]), dx, total, np.float32(eps))
        _reduce(total, dweight)
    return dx, dweight


@variant(needs="shuffles")
def persistent(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Declines more than 8192 columns, 4096 of float32: the registers of one block. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        _reduce(by_persistent_blocks(x, weight, dy, None, rstd, dx, eps, centred=False)[0], dweight)
    return dx, dweight


@variant(needs="shuffles")
def column_blocks(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, dy (rows, cols), weight (cols,), rstd (rows,) float32 or None -> dx like x, dweight (cols,).

    Takes any number of columns; x and dy come from memory twice. Source: [hsu2024].
    """
    checked_sizes(x, weight, dy, rstd)
    dx, dweight = empty_outputs(x)
    if dx.numel():
        _reduce(in_column_blocks(x, weight, dy, None, rstd, dx, eps, centred=False)[0], dweight)
    return dx, dweight


@cuda.jit
def _summed(partial, dweight):
    # The sums of `partial` (parts, cols) over the parts, always in the same order.
    sums = cuda.local.array(1, float32)
    sums[0] = float32(0)
    col = uint32(cuda.blockIdx.x * 32 + cuda.threadIdx.x)
    if col < uint32(partial.shape[1]):
        part = uint64(cuda.threadIdx.y)
        while part < uint64(partial.shape[0]):
            sums[0] += partial[part, col]
            part += uint64(cuda.blockDim.y)
    column_sums(sums)
    if cuda.threadIdx.y == 0 and col < uint32(partial.shape[1]):
        dweight[col] = sums[0]


def _given(rstd: torch.Tensor | None, other: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """rstd, or `other` in its place where it is None, and whether it was given."""
    return (other, False) if rstd is None else (rstd, True)


def _reduce(partial: torch.Tensor, dweight: torch.Tensor) -> None:
    """Sum partial sums (parts, cols) over parts into dweight, always in the same order."""
    parts, cols = partial.shape
    launch(_summed, -(-cols // 32), (32, min(parts, 32)), partial, dweight)
