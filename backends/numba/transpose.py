"""Transpose: y[c, r] = x[r, c].

naive: a thread an element; a warp reads neighbours of a row and writes each to another row of y [harris2013]
coalesced: the other way round: whole lines are written, and strided reads find their lines in the cache [harris2013]
tiled: a tile passes through shared memory, so that both reads and writes are along rows [harris2013]
padded: rows of the tile are one element longer, so that the elements of a column lie in different banks [harris2013]
swizzled: the same without the padding: element c of row r lies at c xor r [xlite2025]
vectorised: rows of a tile come and go in pieces of 16 bytes [xlite2025]
"""

import functools

import torch
from numba import cuda, int16, int32, uint32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import load16, store16
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant

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


@variant()
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


@variant()
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


@variant()
def tiled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _launch_tiles(x, _SIDE)


@variant()
def padded(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [harris2013]."""
    return _launch_tiles(x, _SIDE + 1)


@variant()
def swizzled(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides. Source: [xlite2025]."""
    return _launch_tiles(x, _SIDE, swizzled=True)


_WIDE, _THREADS = 64, 256  # side of a tile, threads of a block


@functools.cache
def _by_pieces(size):
    """The kernel for elements of `size` bytes, of which a word of the tile has one or two."""
    in_word, lanes = 4 // size, 16 // size
    pitch, pieces = _WIDE // in_word, _WIDE // lanes  # words and pieces of a row
    size_of_tile, turns = _WIDE * pitch, _WIDE * pieces // _THREADS
    held = max(4 * turns, 8)  # words of a thread

    @cuda.jit
    def kernel(x, y):
        tile, words = cuda.shared.array(size_of_tile, uint32), cuda.local.array(held, uint32)
        rows, cols = uint64(x.shape[0]), uint64(x.shape[1])
        across = (cols + uint64(_WIDE - 1)) // uint64(_WIDE)
        first_row = uint64(cuda.blockIdx.x) // across * uint64(_WIDE)
        first_col = uint64(cuda.blockIdx.x) % across * uint64(_WIDE)
        t = uint32(cuda.threadIdx.x)
        for turn in range(turns):  # on their way together
            at = uint32(turn * _THREADS) + t
            row, col = first_row + uint64(at // uint32(pieces)), first_col + uint64(at % uint32(pieces) * uint32(lanes))
            for i in range(4):
                words[4 * turn + i] = uint32(0)
            if row < rows and col < cols:
                load16(x, (row, col), words, 4 * turn)
        for turn in range(turns):
            at = uint32(turn * _THREADS) + t
            r, piece = at // uint32(pieces), at % uint32(pieces)
            # eight lanes of a warp read the same column of rows `lanes` apart: so they find it in different banks
            place = r * uint32(pitch) + (piece ^ r // uint32(lanes) % uint32(8)) * uint32(4)
            for i in range(4):
                tile[place + uint32(i)] = words[4 * turn + i]
        cuda.syncthreads()  # the tile is there
        for turn in range(pitch * pieces // _THREADS):
            at = uint32(turn * _THREADS) + t
            word, piece = at // uint32(8) % uint32(pitch), at % uint32(8) + at // uint32(8 * pitch) * uint32(8)
            row, col = first_row + uint64(piece) * uint64(lanes), first_col + uint64(word) * uint64(in_word)
            if row < rows and col < cols:
                # rows of one piece have theirs in one place
                place = (word // uint32(4) ^ piece % uint32(8)) * uint32(4) + word % uint32(4)
                place += piece * uint32(lanes * pitch)
                for i in range(4):
                    if in_word == 1:
                        words[i] = tile[place + uint32(i * pitch)]
                    else:
                        low, high = tile[place + uint32(2 * i * pitch)], tile[place + uint32((2 * i + 1) * pitch)]
                        words[i] = low & uint32(0xFFFF) | high << uint32(16)
                        words[4 + i] = low >> uint32(16) | high & uint32(0xFFFF0000)
                store16(words, 0, y, (col, row))
                if in_word == 2 and col + uint64(1) < cols:
                    store16(words, 4, y, (col + uint64(1), row))

    return kernel


@variant()
def vectorised(x: torch.Tensor) -> torch.Tensor:
    """x (rows, cols) -> y (cols, rows); any strides.

    Where rows of x or of y are not whole 16-byte vectors, elements are moved as by `swizzled`. Source: [xlite2025].
    """
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    kind = {2: torch.int16, 4: torch.float32}[x.element_size()]  # whose vectors have as many elements
    bits, into = x.view(kind), y.view(kind)
    if not y.numel() or not (are_rows_aligned(bits) and are_rows_aligned(into)):
        return swizzled(x)
    grid = checked_grid(-(-rows // _WIDE) * -(-cols // _WIDE))
    launch(_by_pieces(x.element_size()), grid, _THREADS, bits, into)
    return y
