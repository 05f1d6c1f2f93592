"""The fastest schedules of the norms' gradients, in accesses of 16 bytes: persistent blocks, and blocks of columns.

As in norms_backward.py, `centred` kernels are layer norm's and the others RMS norm's.
"""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.norms_backward import Operands, block_sums, given, processors, sum_parts
from touchstone.backends.numba.lib.reductions import at_most, block_grid, block_threads, deep_jit, for_rows
from touchstone.backends.numba.lib.vector_io import lanes_of, load16, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, are_rows_aligned, first_col, inside, load_row, store_values
from touchstone.backends.numba.runtime.launching import launch

VECTORS = 2  # vectors of 16 bytes of a row in a thread's registers
_ROOM = 512 * VECTORS * LANES  # a block's sums of columns


@functools.cache
def _persistent(wide, centred):
    words = 4 * VECTORS

    @cuda.jit(device=True)
    def add_columns(sums, x, xs, dys, ws, mean):
        """`sums` of g * (x - mean), (x - mean)^2 and g over the columns of the thread."""
        length = lanes_of(x)
        sums[0] = sums[1] = sums[2] = float32(0)
        for r in range(VECTORS):
            for i in range(length):
                value = unpacked(xs, r * length + i, x) - mean
                g = unpacked(dys, r * length + i, x) * unpacked(ws, r * length + i, x)
                sums[0] += g * value
                sums[1] += value * value if inside(r, i, x, wide) else float32(0)
                sums[2] += g

    @cuda.jit(device=True)
    def write_row(dx, row, xs, dys, ws, out, mean, rstd, shift, dot, dweight, dbias):
        """dx of a row, through `out` (LANES,), and its part in the sums over rows."""
        length = lanes_of(dx)
        for r in range(VECTORS):
            for i in range(length):
                slope = unpacked(dys, r * length + i, dx)
                normed = (unpacked(xs, r * length + i, dx) - mean) * rstd
                out[i] = rstd * (slope * unpacked(ws, r * length + i, dx) - shift - normed * dot)
                dweight[r, i] += slope * normed
                if centred:
                    dbias[r, i] += slope
            store_values(out, dx, row, r, wide)

    @deep_jit
    def kernel(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, dx, partial, eps):
        # The sums of a block are one row of `partial` (2 or 1, blocks, cols): dweight's, then dbias's.
        room = cuda.shared.array(_ROOM, float32)
        xs = cuda.local.array(words, uint32)
        dys = cuda.local.array(words, uint32)
        ws = cuda.local.array(words, uint32)
        x_next = cuda.local.array(words, uint32)
        dy_next = cuda.local.array(words, uint32)
        dweight = cuda.local.array((VECTORS, LANES), float32)
        dbias = cuda.local.array((VECTORS, LANES), float32)
        out = cuda.local.array(LANES, float32)
        total = cuda.local.array(1, float32)
        sums = cuda.local.array(3, float32)
        rows, count, length = uint64(x.shape[0]), float32(x.shape[1]), lanes_of(x)
        step = uint64(cuda.gridDim.x) * uint64(cuda.blockDim.y)
        base = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y)
        row = base + uint64(cuda.threadIdx.y)
        for i in range(words):
            xs[i] = dys[i] = x_next[i] = dy_next[i] = uint32(0)
        for r in range(VECTORS):
            for i in range(length):
                dweight[r, i] = dbias[r, i] = float32(0)
        next_mean, next_rstd = float32(0), float32(0)
        load_row(weight, uint64(0), ws, wide)
        if row < rows:
            load_row(x, row, xs, wide)
            load_row(dy, row, dys, wide)
            next_mean = given_mean[row] if has_mean else float32(0)
            next_rstd = given_rstd[row] if has_rstd else float32(0)
        turn = 0
        while base < rows:  # all threads of a block go along
            mean, rstd = next_mean, next_rstd
            if row + step < rows:
                load_row(x, row + step, x_next, wide)
                load_row(dy, row + step, dy_next, wide)
                next_mean = given_mean[row + step] if has_mean else float32(0)
                next_rstd = given_rstd[row + step] if has_rstd else float32(0)
            if centred and not has_mean:
                total[0] = float32(0)
                for i in range(VECTORS * length):
                    total[0] += unpacked(xs, i, x)
                block_sums(total, turn)
                turn = 1 - turn
                mean = total[0] / count

            add_columns(sums, x, xs, dys, ws, mean)
            block_sums(sums, turn)
            turn = 1 - turn
            if not has_rstd:
                rstd = float32(1) / math.sqrt(sums[1] / count + eps)
            dot, shift = sums[0] * rstd / count, sums[2] / count if centred else float32(0)

            if row < rows:
                write_row(dx, row, xs, dys, ws, out, mean, rstd, shift, dot, dweight, dbias)
            for i in range(words):
                xs[i] = x_next[i]
                dys[i] = dy_next[i]
            base += step
            row += step
        _store_sums(dweight, x, partial, 0, room)
        if centred:
            _store_sums(dbias, x, partial, 1, room)

    return kernel


@cuda.jit(device=True)
def _store_sums(values, x, partial, which, room):
    """Sums (VECTORS, lanes) of a block's threads, those of its rows added up, to a row of `partial`."""
    span, cols = uint32(cuda.blockDim.x * VECTORS * lanes_of(x)), uint32(x.shape[1])
    cuda.syncthreads()
    for r in range(VECTORS):
        for i in range(lanes_of(x)):
            room[uint32(cuda.threadIdx.y) * span + first_col(r, x) + uint32(i)] = values[r, i]
    cuda.syncthreads()
    col = uint32(cuda.threadIdx.y) * uint32(cuda.blockDim.x) + uint32(cuda.threadIdx.x)
    while col < cols:
        total = room[col]
        y = uint32(1)
        while y < uint32(cuda.blockDim.y):
            total += room[y * span + col]
            y += uint32(1)
        partial[uint32(which), uint32(cuda.blockIdx.x), col] = total
        col += uint32(cuda.blockDim.x) * uint32(cuda.blockDim.y)


def by_persistent_blocks(operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor) -> None:
    """dx and its sums, dweight and where there is one dbias, by blocks that go from rows to rows.

    Declines rows longer than 512 threads hold in VECTORS vectors of 16 bytes.
    """
    x, weight, dy, mean, rstd = operands
    rows, cols = x.shape
    each = VECTORS * 16 // x.element_size()
    at_most(cols, 512 * each, "block")
    across = block_threads(-(-cols // each), 512)
    down = min(512 // across, -(-rows // processors(x)))
    parts = min(-(-rows // down), processors(x))
    partial = torch.empty((len(sums), parts, cols), dtype=torch.float32, device=x.device)
    kernel = _persistent(all(map(are_rows_aligned, (x, weight, dy, dx))), len(sums) == 2)
    statistics = given(mean, rstd, partial[0, 0])
    launch(kernel, parts, (across, down), x, for_rows(weight, 1), dy, *statistics, dx, partial, np.float32(eps))
    sum_parts(partial, *sums)


_AT_ONCE = 4  # loads of each operand that are under way in a thread


@functools.cache
def _statistics(wide, centred):
    words = 4 * _AT_ONCE

    @deep_jit
    def kernel(x, weight, dy, given_mean, given_rstd, has_mean, has_rstd, statistics, eps):
        # Of each row mean, rstd, mean(g) and mean(g * n) to `statistics` (rows, 4).
        xs = cuda.local.array(words, uint32)
        dys = cuda.local.array(words, uint32)
        ws = cuda.local.array(words, uint32)
        total = cuda.local.array(1, float32)
        sums = cuda.local.array(3, float32)  # of g * (x - mean), (x - mean)^2, g
        row, cols, count = uint64(cuda.blockIdx.x), uint64(x.shape[1]), float32(x.shape[1])
        length = lanes_of(x)
        first, step = uint64(cuda.threadIdx.x) * uint64(length), uint64(cuda.blockDim.x) * uint64(length)
        total[0] = sums[0] = sums[1] = sums[2] = float32(0)
        if centred and not has_mean:
            col = first
            while col < cols:
                for u in range(_AT_ONCE):
                    load_vector(x, (row, col + uint64(u) * step), xs, 4 * u, wide)
                for i in range(_AT_ONCE * length):
                    total[0] += unpacked(xs, i, x)
                col += uint64(_AT_ONCE) * step
            block_sums(total, 0)
        mean = given_mean[row] if has_mean else total[0] / count

        col = first
        while col < cols:
            for u in range(_AT_ONCE):
                load_vector(x, (row, col + uint64(u) * step), xs, 4 * u, wide)
                load_vector(dy, (row, col + uint64(u) * step), dys, 4 * u, wide)
                load_vector(weight, (uint64(0), col + uint64(u) * step), ws, 4 * u, wide)
            for u in range(_AT_ONCE):
                for i in range(length):
                    value = unpacked(xs, u * length + i, x) - mean
                    g = unpacked(dys, u * length + i, x) * unpacked(ws, u * length + i, x)
                    within = col + uint64(u) * step + uint64(0 if wide else i) < cols
                    sums[0] += g * value
                    sums[1] += value * value if within else float32(0)
                    sums[2] += g
            col += uint64(_AT_ONCE) * step
        block_sums(sums, 1)
        rstd = given_rstd[row] if has_rstd else float32(1) / math.sqrt(sums[1] / count + eps)
        if cuda.threadIdx.x == 0:
            statistics[row, uint64(0)] = mean
            statistics[row, uint64(1)] = rstd
            statistics[row, uint64(2)] = sums[2] / count if centred else float32(0)
            statistics[row, uint64(3)] = sums[0] * rstd / count

    return kernel


@functools.cache
def _column_blocks(wide, centred):
    words = 4 * _AT_ONCE

    @deep_jit
    def kernel(x, weight, dy, statistics, dx, partial, rows_each):
        # dx of a vector of columns in a part of the rows, and the part's sums, one row of `partial`; no thread needs
        # another.
        xs = cuda.local.array(words, uint32)
        dys = cuda.local.array(words, uint32)
        ws = cuda.local.array(4, uint32)
        about = cuda.local.array(words, uint32)
        packed = cuda.local.array(4, uint32)
        dweight = cuda.local.array(LANES, float32)
        dbias = cuda.local.array(LANES, float32)
        out = cuda.local.array(LANES, float32)
        length, cols, part = lanes_of(x), uint64(x.shape[1]), uint64(cuda.blockIdx.y)
        col = (uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)) * uint64(length)
        if col >= cols:
            return
        load_vector(weight, (uint64(0), col), ws, 0, wide)
        for i in range(LANES):
            dweight[i] = dbias[i] = float32(0)
        row = part * uint64(rows_each)
        end = min(row + uint64(rows_each), uint64(x.shape[0]))
        while row < end:
            for u in range(_AT_ONCE):
                at = min(row + uint64(u), end - uint64(1))
                load_vector(x, (at, col), xs, 4 * u, wide)
                load_vector(dy, (at, col), dys, 4 * u, wide)
                load16(statistics, (at, uint64(0)), about, 4 * u)
            for u in range(_AT_ONCE):
                if row + uint64(u) < end:
                    mean, rstd = unpacked(about, 4 * u, statistics), unpacked(about, 4 * u + 1, statistics)
                    shift, dot = unpacked(about, 4 * u + 2, statistics), unpacked(about, 4 * u + 3, statistics)
                    for i in range(length):
                        slope = unpacked(dys, u * length + i, x)
                        normed = (unpacked(xs, u * length + i, x) - mean) * rstd
                        out[i] = rstd * (slope * unpacked(ws, i, x) - shift - normed * dot)
                        dweight[i] += slope * normed
                        if centred:
                            dbias[i] += slope
                    pack(out, packed, 0, dx)
                    store_vector(packed, 0, dx, (row + uint64(u), col), wide)
            row += uint64(_AT_ONCE)
        for i in range(length):
            if col + uint64(i) < cols:
                partial[uint64(0), part, col + uint64(i)] = dweight[i]
                if centred:
                    partial[uint64(1), part, col + uint64(i)] = dbias[i]

    return kernel


def in_column_blocks(operands: Operands, eps: float, dx: torch.Tensor, *sums: torch.Tensor) -> None:
    """The same for rows of any length; x and dy come from memory twice."""
    x, weight, dy, mean, rstd = operands
    rows, cols = x.shape
    length = 16 // x.element_size()
    wide, centred = all(map(are_rows_aligned, (x, weight, dy, dx))), len(sums) == 2
    statistics = torch.empty((rows, 4), dtype=torch.float32, device=x.device)
    weights, known = for_rows(weight, 1), given(mean, rstd, statistics[0])
    grid, across = block_grid(rows, -(-cols // length))
    launch(_statistics(wide, centred), grid, across, x, weights, dy, *known, statistics, np.float32(eps))
    width = -(-cols // (across * length))
    rows_each = -(-rows // max(1, min(-(-rows // _AT_ONCE), 1024 // across * processors(x) // width)))
    parts = -(-rows // rows_each)
    partial = torch.empty((len(sums), parts, cols), dtype=torch.float32, device=x.device)
    kernel = _column_blocks(wide, centred)
    launch(kernel, (width, parts), across, x, weights, dy, statistics, dx, partial, np.uint64(rows_each))
    sum_parts(partial, *sums)
