"""The gradients of layer norm and of RMS norm: one schedule for both, which an op gives the statistics of its rows.

Of a row, with r = 1 / sqrt(variance + eps), n = (x - mean) * r and g = dy * weight: dx = r * (g - shift - n * dot),
where shift = mean(g) and dot = mean(g * n); dweight sums dy * n and dbias dy over the rows. Where not `centred`, in RMS
norm, mean and shift are 0 and there is no dbias: kernels that write one are given dweight in its place.

Statistics are device functions, made by the op, that return these numbers of a row to all threads that read it:

from_memory(sum_over)(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, row, first, step, eps)
    -> mean, rstd, shift, dot of a row of which this thread reads the columns first, first + step, ...;
    `sum_over(values, turn)` makes the values of a local array their sums over the threads of a row.
of_warp(values, g, given_mean, given_rstd, has_mean, has_rstd, row, cols, eps) -> the same, of a row whose columns
    i·32 + lane are in the local arrays `values` (x, from which the mean is then subtracted) and `g`; 0 beyond the row.
of_block(x, weight, dy, values, slope, given_mean, given_rstd, has_mean, has_rstd, row, eps, turn) -> rstd, shift, dot,
    turn of a row, whose columns i·blockDim.x + threadIdx.x are then in `values` (x - mean) and `slope` (dy); `turn` is
    that of the next block_sums.
"""

import functools
from typing import Any

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.devices import multiprocessors
from touchstone.backends.numba.lib.reductions import (
    WARP_COLS,
    block_grid,
    block_threads,
    thread_grid,
    warp_grid,
    warp_sum,
    wide_jit,
)
from touchstone.backends.numba.runtime.launching import launch

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""x, dy (rows, cols), weight (cols,), mean and rstd (rows,) or None, in the order x, weight, dy, mean, rstd."""

HELD = WARP_COLS // 32  # columns of a row in a lane's registers: 32 * i + lane
KEPT = 8  # and in those of a thread of a block: cuda.blockDim.x * i + cuda.threadIdx.x
BLOCK_COLS = KEPT * 1024


def processors(x: torch.Tensor) -> int:
    """Multiprocessors of the GPU that holds x; on the CPU a few."""
    return multiprocessors(x.device) if x.is_cuda else 3


def resident_grid(x: torch.Tensor) -> tuple[int, int]:
    """Blocks, so many that a multiprocessor runs 1024 threads at once (a few on the CPU), and the threads of each."""
    rows, cols = x.shape
    across = block_threads(-(-cols // KEPT), 1024)
    return min(rows, processors(x) * (1024 // across) if x.is_cuda else 3), across


def given(
    mean: torch.Tensor | None, rstd: torch.Tensor | None, other: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, bool, bool]:
    """mean and rstd, `other` in place of one that is None, and whether each was given."""
    return (other if mean is None else mean, other if rstd is None else rstd, mean is not None, rstd is not None)


@cuda.jit(device=True)
def own_sums(values, turn):
    # In place of block_sums for a thread that reads a row alone: its values are the sums.
    pass


@cuda.jit(device=True)
def block_sums(values, turn):
    """Make the values of a local array, at most 3, their sums over the blockDim.x threads of a row, in every one of
    them.

    A row is whole warps; rows share a block along y, and all threads of the block come here where a row is several
    warps. `turn` is 0 and 1 by turns, call by call: a slow reader of one half of `partials` is not overtaken by the
    writers of the next call, and one barrier is enough.
    """
    partials = cuda.shared.array((2, 3, 32), float32)
    lane, warps = uint32(cuda.threadIdx.x % 32), uint32(cuda.blockDim.x // 32)
    first = uint32(cuda.threadIdx.y) * warps
    for i in range(values.size):
        values[i] = warp_sum(values[i])
    if cuda.blockDim.x == 32:
        return
    if lane == uint32(0):
        for i in range(values.size):
            partials[uint32(turn), i, first + uint32(cuda.threadIdx.x // 32)] = values[i]
    cuda.syncthreads()
    for i in range(values.size):
        values[i] = warp_sum(partials[uint32(turn), i, first + lane] if lane < warps else float32(0))


@cuda.jit(device=True)
def column_sums(values):
    """Make the values of a local array, at most 2, their sums over the warps of a block (32, n); the first warp gets
    them."""
    partials = cuda.shared.array((2, 32, 32), float32)
    lane = uint32(cuda.threadIdx.x)
    for i in range(values.size):
        partials[i, uint32(cuda.threadIdx.y), lane] = values[i]
    cuda.syncthreads()
    if cuda.threadIdx.y == 0:
        warp = uint64(1)
        while warp < uint64(cuda.blockDim.y):
            for i in range(values.size):
                values[i] += partials[i, warp, lane]
            warp += uint64(1)


# Statistics of a row and its dx first, a launch for the sums of columns then.


@functools.cache
def _dx_from_memory(from_memory, in_blocks, centred):
    row_statistics = from_memory(block_sums if in_blocks else own_sums)

    @cuda.jit
    def dx_from_memory(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, statistics, eps):
        # dx by a thread or a block per row; mean, where `centred`, and rstd to `statistics` (2, rows).
        row, first, step = uint64(cuda.grid(1)), uint64(0), uint64(1)
        if in_blocks:
            row, first, step = uint64(cuda.blockIdx.x), uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
        elif row >= uint64(x.shape[0]):
            return
        mean, rstd, shift, dot = row_statistics(
            x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, row, first, step, eps
        )
        col = first
        while col < uint64(x.shape[1]):
            normed = (float32(x[row, col]) - mean) * rstd
            dx[row, col] = rstd * (float32(dy[row, col]) * float32(weight[col]) - shift - normed * dot)
            col += step
        if first == uint64(0):
            statistics[1, row] = rstd
            if centred:
                statistics[0, row] = mean

    return dx_from_memory


@functools.cache
def _dx_of_warp(of_warp, centred):
    @cuda.jit
    def dx_of_warp(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, statistics, eps):
        # A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
        values = cuda.local.array(HELD, float32)
        g = cuda.local.array(HELD, float32)
        row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
        if row >= uint64(x.shape[0]):
            return  # a whole warp
        cols = uint32(x.shape[1])
        for i in range(HELD):
            col = uint32(i * 32 + cuda.threadIdx.x)
            values[i] = float32(x[row, col]) if col < cols else float32(0)
            g[i] = float32(dy[row, col]) * float32(weight[col]) if col < cols else float32(0)
        mean, rstd, shift, dot = of_warp(values, g, given_mean, given_rstd, has_mean, has_rstd, row, cols, eps)
        for i in range(HELD):
            col = uint32(i * 32 + cuda.threadIdx.x)
            if col < cols:
                dx[row, col] = rstd * (g[i] - shift - values[i] * rstd * dot)
        if cuda.threadIdx.x == 0:
            statistics[1, row] = rstd
            if centred:
                statistics[0, row] = mean

    return dx_of_warp


@functools.cache
def _column_sums(in_blocks, centred):
    count = 1 + centred

    @cuda.jit
    def column_gradients(x, dy, statistics, dweight, dbias):
        # dweight and dbias by a thread per column, or by a block of 32 columns, its warps sharing the rows.
        sums = cuda.local.array(count, float32)
        col, row, step = uint64(cuda.grid(1)), uint64(0), uint64(1)
        if in_blocks:
            col = uint64(cuda.blockIdx.x) * uint64(32) + uint64(cuda.threadIdx.x)
            row, step = uint64(cuda.threadIdx.y), uint64(cuda.blockDim.y)
        for i in range(count):
            sums[i] = float32(0)
        if col < uint64(x.shape[1]):
            while row < uint64(x.shape[0]):
                slope, value = float32(dy[row, col]), float32(x[row, col])
                if centred:
                    value -= statistics[0, row]
                    sums[count - 1] += slope
                sums[0] += slope * value * statistics[1, row]
                row += step
        if in_blocks:
            column_sums(sums)
        if col < uint64(x.shape[1]) and cuda.threadIdx.y == 0:
            dweight[col] = sums[0]
            if centred:
                dbias[col] = sums[count - 1]

    return column_gradients


def thread_per_row(from_memory: Any, operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor) -> None:
    """dx and its sums, dweight and where there is one dbias, for rows and columns of any length."""
    _dx_first(_dx_from_memory(from_memory, False, len(sums) == 2), thread_grid(len(dx)), operands, eps, dx, sums)


def block_per_row(from_memory: Any, operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor) -> None:
    """The same with the threads of a block reading neighbours of a row."""
    _dx_first(_dx_from_memory(from_memory, True, len(sums) == 2), block_grid(*dx.shape), operands, eps, dx, sums)


def _dx_first(
    kernel: Any, grid: tuple[int, int], operands: Operands, eps: float, dx: torch.Tensor, sums: tuple[torch.Tensor, ...]
) -> None:
    statistics = _launch_dx(kernel, grid, operands, eps, dx)
    x, _, dy, _, _ = operands
    across = block_threads(x.shape[1])
    grid = -(-x.shape[1] // across), across
    launch(_column_sums(False, len(sums) == 2), *grid, x, dy, statistics, sums[0], sums[-1])


def warp_per_row(of_warp: Any, operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor) -> None:
    """A warp holds a row, of at most WARP_COLS columns; then the warps of a block share the rows of 32 columns."""
    x, _, dy, _, _ = operands
    rows, cols = x.shape
    centred = len(sums) == 2
    statistics = _launch_dx(_dx_of_warp(of_warp, centred), warp_grid(rows), operands, eps, dx)
    launch(_column_sums(True, centred), -(-cols // 32), (32, min(rows, 32)), x, dy, statistics, sums[0], sums[-1])


def _launch_dx(kernel: Any, grid: tuple[int, Any], operands: Operands, eps: float, dx: torch.Tensor) -> torch.Tensor:
    """The rows' mean and rstd (2, rows)."""
    x, weight, dy, mean, rstd = operands
    statistics = torch.empty((2, len(x)), dtype=torch.float32, device=x.device)
    launch(kernel, *grid, x, weight, dy, *given(mean, rstd, statistics[0]), dx, statistics, np.float32(eps))
    return statistics


# One launch for all: a block holds row after row in registers and sums what it saw of them.


@functools.cache
def _rows_in_registers(of_block, by_atomics, centred):
    @cuda.jit(device=True)
    def add_rows(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, dweight, dbias, eps):
        """dx of every gridDim.x-th row, and the sums of those rows in `dweight` and `dbias` (KEPT,)."""
        values = cuda.local.array(KEPT, float32)
        slope = cuda.local.array(KEPT, float32)
        cols = uint32(x.shape[1])
        for i in range(KEPT):
            dweight[i] = dbias[i] = float32(0)
        turn = 0
        row = uint64(cuda.blockIdx.x)
        while row < uint64(x.shape[0]):
            rstd, shift, dot, turn = of_block(
                x, weight, dy, values, slope, given_mean, given_rstd, has_mean, has_rstd, row, eps, turn
            )
            for i in range(KEPT):
                col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
                if col < cols:
                    normed = values[i] * rstd
                    dx[row, col] = rstd * (slope[i] * float32(weight[col]) - shift - normed * dot)
                    dweight[i] += slope[i] * normed
                    if centred:
                        dbias[i] += slope[i]
            row += uint64(cuda.gridDim.x)

    @wide_jit
    def rows_in_registers(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, total, eps):
        # The sums of a block are one row of `total` (2 or 1, blocks, cols), or meet in its one row by atomics.
        dweight = cuda.local.array(KEPT, float32)
        dbias = cuda.local.array(KEPT, float32)
        add_rows(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, dweight, dbias, eps)
        for i in range(KEPT):
            col = uint32(i * cuda.blockDim.x + cuda.threadIdx.x)
            if col < uint32(x.shape[1]):
                if by_atomics:
                    cuda.atomic.add(total, (0, 0, col), dweight[i])
                    if centred:
                        cuda.atomic.add(total, (1, 0, col), dbias[i])
                else:
                    total[0, uint32(cuda.blockIdx.x), col] = dweight[i]
                    if centred:
                        total[1, uint32(cuda.blockIdx.x), col] = dbias[i]

    return rows_in_registers


def rows_in_registers(
    of_block: Any, operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor, by_atomics: bool
) -> None:
    """dx and the sums by as many blocks as run at once, one part each or, `by_atomics`, in a common row; at most
    BLOCK_COLS columns."""
    x, weight, dy, mean, rstd = operands
    parts, across = resident_grid(x)
    size = (len(sums), 1 if by_atomics else parts, x.shape[1])
    total = (torch.zeros if by_atomics else torch.empty)(size, dtype=torch.float32, device=x.device)
    kernel = _rows_in_registers(of_block, by_atomics, len(sums) == 2)
    launch(kernel, parts, across, x, weight, dy, *given(mean, rstd, total[0, 0]), dx, total, np.float32(eps))
    sum_parts(total, *sums)


@functools.cache
def _parts_sum(count):
    @cuda.jit
    def parts_sum(partial, dweight, dbias):
        # The sums of `partial` (count, parts, cols) over the parts, always in the same order.
        sums = cuda.local.array(count, float32)
        for i in range(count):
            sums[i] = float32(0)
        col = uint32(cuda.blockIdx.x * 32 + cuda.threadIdx.x)
        if col < uint32(partial.shape[2]):
            part = uint64(cuda.threadIdx.y)
            while part < uint64(partial.shape[1]):
                for i in range(count):
                    sums[i] += partial[i, part, col]
                part += uint64(cuda.blockDim.y)
        column_sums(sums)
        if cuda.threadIdx.y == 0 and col < uint32(partial.shape[2]):
            dweight[col] = sums[0]
            if count == 2:
                dbias[col] = sums[count - 1]

    return parts_sum


def sum_parts(partial: torch.Tensor, *sums: torch.Tensor) -> None:
    """Sum partial sums (2 or 1, parts, cols) over parts into dweight, dbias or dweight, always in the same order."""
    _, parts, cols = partial.shape
    launch(_parts_sum(len(sums)), -(-cols // 32), (32, min(parts, 32)), partial, sums[0], sums[-1])
