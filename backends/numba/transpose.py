"""Transpose: y[c, r] = x[r, c].

naive: a thread an element; a warp reads neighbours of a row and writes each to another row of y [harris2013]
coalesced: the other way round: whole lines are written, and strided reads find their lines in the cache [harris2013]
tiled: a tile passes through shared memory, so that both reads and writes are along rows [harris2013]
padded: rows of the tile are one element longer, so that the elements of a column lie in different banks [harris2013]
swizzled: the same without the padding: element c of row r lies at c xor r [xlite2025]
"""

import functools

import torch
from numba import cuda, int16, int32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch

_SIDE, _STEP = 32, 8  # of a tile; rows of it that a block moves at once
_BITS = {2: (torch.int16, int16), 4: (torch.int32, int32)}  # what elements are moved as


def _bits_and_output(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The bits of a checked operand as integers, a fresh y and the bits of it."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    kind, _ = _BITS[x.element_size()]
    return x.view(kind), y, y.view(kind)


@cuda.jit
def _naive(x, y):
    index, cols = uint64(cuda.grid(1)), uint64(x.shape[1])
    if index < uint64(x.shape[0]) * cols:
        row, col = index // cols, index % cols  # neighbours in a warp are neighbours in x
        y[col, row] = x[row, col]


def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    bits, y, into = _bits_and_output(x)
    if y.numel():
        launch(_naive, checked_grid(-(-y.numel() // 256)), 256, bits, into)
    return y


@cuda.jit
def _coalesced(x, y):
    across = uint64((x.shape[1] + cuda.blockDim.y - 1) // cuda.blockDim.y)
    block = uint64(cuda.blockIdx.x)
    row = block // across * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)  # neighbours are neighbours in y
    col = block % across * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row < uint64(x.shape[0]) and col < uint64(x.shape[1]):
        y[col, row] = x[row, col]


def coalesced(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    bits, y, into = _bits_and_output(x)
    if y.numel():
        launch(_coalesced, checked_grid(-(-x.shape[0] // 32) * -(-x.shape[1] // 8)), (32, 8), bits, into)
    return y


@functools.cache
def _by_tiles(pitch, swizzled, element):
    """The kernel whose tile has rows of `pitch` elements."""

    @cuda.jit
    def kernel(x, y):
        tile = cuda.shared.array((_SIDE, pitch), element)
        rows, cols = uint64(x.shape[0]), uint64(x.shape[1])
        across = (cols + uint64(_SIDE - 1)) // uint64(_SIDE)
        first_row = uint64(cuda.blockIdx.x) // across * uint64(_SIDE)
        first_col = uint64(cuda.blockIdx.x) % across * uint64(_SIDE)
        i = uint32(cuda.threadIdx.x)
        for step in range(0, _SIDE, _STEP):
            r = uint32(step + cuda.threadIdx.y)
            row, col = first_row + uint64(r), first_col + uint64(i)
            if row < rows and col < cols:
                tile[r, i ^ r if swizzled else i] = x[row, col]
        cuda.syncthreads()  # the tile is there
        for step in range(0, _SIDE, _STEP):
            c = uint32(step + cuda.threadIdx.y)
            row, col = first_row + uint64(i), first_col + uint64(c)
            if row < rows and col < cols:
                y[col, row] = tile[i, c ^ i if swizzled else c]

    return kernel


def _launch_tiles(x: torch.Tensor, pitch: int, swizzled: bool = False) -> torch.Tensor:
    bits, y, into = _bits_and_output(x)
    if y.numel():
        grid = checked_grid(-(-x.shape[0] // _SIDE) * -(-x.shape[1] // _SIDE))
        launch(_by_tiles(pitch, swizzled, _BITS[x.element_size()][1]), grid, (_SIDE, _STEP), bits, into)
    return y


def tiled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _launch_tiles(x, _SIDE)


def padded(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _launch_tiles(x, _SIDE + 1)


def swizzled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [xlite2025]."""
    return _launch_tiles(x, _SIDE, swizzled=True)
