"""Tiles of rows of floats in shared memory, for blocks of (ty, tx) threads, 8 along x, without tensor cores.

Of a product of two tiles thread (ty, tx) has rows ty + TY·r and columns tx + 8·c. A row of a tile has one float more
than it holds: the threads of a warp, who read a column of it, then meet in no bank.

uint64(i) at an index says that it is not negative, which the compiler cannot always see.
"""

from numba import cuda, float32, uint64


@cuda.jit(device=True)
def load_tile(tile, x, first, thread, threads):
    """The rows of x (rows, cols) from `first` on; zeros beyond its last row and column."""
    rows, width = tile.shape[0], tile.shape[1] - 1
    e = thread
    while e < rows * width:
        r, d = e // width, e % width
        inside = first + r < x.shape[0] and d < x.shape[1]
        tile[uint64(r), uint64(d)] = float32(x[uint64(first + r), uint64(d)]) if inside else float32(0)
        e += threads


@cuda.jit(device=True)
def multiply(dots, rows, cols, ty, tx, dim):
    """dots[r, c] = Σ_d rows[ty + TY·r, d]·cols[tx + 8·c, d] over d below `dim`."""
    across = rows.shape[0] // dots.shape[0]
    for r in range(dots.shape[0]):
        for c in range(dots.shape[1]):
            dots[r, c] = float32(0)
    d = 0
    while d < dim:
        for r in range(dots.shape[0]):
            for c in range(dots.shape[1]):
                dots[r, c] += rows[uint64(ty + across * r), uint64(d)] * cols[uint64(tx + 8 * c), uint64(d)]
        d += 1


@cuda.jit(device=True)
def accumulate(acc, weights, rows, ty, tx, count):
    """acc[r, c] += Σ_j weights[ty + TY·r, j]·rows[j, tx + 8·c] over the first `count` rows."""
    across = weights.shape[0] // acc.shape[0]
    j = 0
    while j < count:
        for r in range(acc.shape[0]):
            weight = weights[uint64(ty + across * r), uint64(j)]
            for c in range(acc.shape[1]):
                acc[r, c] += weight * rows[uint64(j), uint64(tx + 8 * c)]
        j += 1
