"""Transpose: y[c, r] = x[r, c].

naive: a thread an element; a warp reads neighbours of a row and writes each to another row of y [harris2013]
coalesced: the other way round: whole lines are written, and strided reads find their lines in the cache [harris2013]
tiled: a tile passes through shared memory, so that both reads and writes are along rows [harris2013]
padded: rows of the tile are one element longer, so that the elements of a column lie in different banks [harris2013]
swizzled: the same without the padding: element c of row r lies at c xor r [xlite2025]
vectorised: 16 bytes an access on both sides, in larger tiles, of which 16-byte pieces are swizzled [xlite2025]

There is no step for a diagonal order of tiles, which was against partition camping: addresses have long been hashed
over the channels of memory.
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.lib.norms import vector_width
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.sizes import ceil_div
from touchstone.backends.variants import variant

_direct = Module(__file__, "direct.cu")
_tiles = Module(__file__, "tiles.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    rows, cols, y = _empty_output(x)
    if y.numel():
        operands = (x, y, rows, cols, *x.stride())
        _direct.launch("transpose_naive", ceil_div(y.numel(), 256), 256, *operands, dtype=x.dtype)
    return y


@variant()
def coalesced(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    rows, cols, y = _empty_output(x)
    if y.numel():
        grid = ceil_div(rows, 32) * ceil_div(cols, 8)
        _direct.launch("transpose_coalesced", grid, (32, 8), x, y, rows, cols, *x.stride(), dtype=x.dtype)
    return y


@variant()
def tiled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _by_tiles("transpose_tiled", x)


@variant()
def padded(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _by_tiles("transpose_padded", x)


@variant()
def swizzled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [xlite2025]."""
    return _by_tiles("transpose_swizzled", x)


def _by_tiles(kernel: str, x: torch.Tensor) -> torch.Tensor:
    """By tiles of 32 by 32, four elements a thread."""
    rows, cols, y = _empty_output(x)
    if y.numel():
        grid = ceil_div(rows, 32) * ceil_div(cols, 32)
        _tiles.launch(kernel, grid, (32, 8), x, y, rows, cols, *x.stride(), dtype=x.dtype)
    return y


@variant()
def vectorised(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides.

    Where rows of x or of y are not whole 16-byte vectors, elements are moved as by `swizzled`. Source: [xlite2025].
    """
    rows, cols, y = _empty_output(x)
    if not y.numel() or vector_width(x, y) == 1:
        return swizzled(x)
    grid = ceil_div(rows, 64) * ceil_div(cols, 64)
    _vectorised.launch("transpose_vectorised", grid, 256, x, y, rows, cols, x.stride(0), dtype=x.dtype)
    return y


def _empty_output(x: torch.Tensor) -> tuple[int, int, torch.Tensor]:
    """rows and cols of a checked operand, and a fresh y."""
    rows, cols = shapes("rows cols", x=x)
    return rows, cols, torch.empty((cols, rows), dtype=x.dtype, device=x.device)
