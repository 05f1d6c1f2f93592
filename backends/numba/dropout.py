"""Dropout: y = x/(1 - p) where Philox's word for the element is at least floor(p·2^32), else 0.

naive: a thread for each element calls Philox and takes one of the four words that it makes [salmon2011]
four: a thread for four elements, which takes all four: a quarter of the multiplications [salmon2011]
vectorised: the same for 16 bytes of x in one access, four elements of it or eight [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import dropped_out, element, philox, word_of
from touchstone.backends.numba.lib.pointwise import LANES, THREADS, in_lines, load_line, place_of_vector, store_line
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._dropout import axes, checked, in_one_run
from touchstone.backends.variants import variant

# x comes as four axes, y as one.


@cuda.jit
def _naive(x, y, threshold, scale, seed, offset):
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    if e < uint64(y.shape[0]):
        y[e] = dropped_out(element(x, e), word_of(e, uint64(seed), uint64(offset)), threshold, scale)


@variant()
def naive(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    return _by_threads(_naive, 1, x, p, seed, offset)


@cuda.jit
def _four(x, y, threshold, scale, seed, offset):
    block = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    words = philox(block, uint64(seed), uint64(offset))
    for i in range(4):
        e = uint64(4) * block + uint64(i)
        if e < uint64(y.shape[0]):
            y[e] = dropped_out(element(x, e), words[i], threshold, scale)


@variant()
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    return _by_threads(_four, 4, x, p, seed, offset)


@cuda.jit
def _vectorised(x, y, threshold, scale, seed, offset):
    # x and y as one line each.
    row, col = place_of_vector(y)
    if row >= uint64(1):
        return
    values = cuda.local.array(LANES, float32)
    load_line(x, row, col, values, True)
    for part in range(lanes_of(y) // 4):
        words = philox((col >> uint64(2)) + uint64(part), uint64(seed), uint64(offset))
        for i in range(4):
            values[4 * part + i] = dropped_out(values[4 * part + i], words[i], threshold, scale)
    store_line(values, y, row, col, True)


@variant()
def vectorised(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape -> y of its shape. Declines x that is not contiguous from a multiple of 16 bytes on.

    Source: [xlite2025].
    """
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    in_one_run(x)
    if y.numel():
        lines = in_lines(x.view(1, -1), y.view(1, -1))
        launch(_vectorised, lines.grid, THREADS, *lines.matrices, threshold, np.float32(scale), seed, offset)
    return y


def _by_threads(kernel, each: int, x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """By threads that have `each` elements, in blocks of 256."""
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if size := y.numel():
        grid = checked_grid(-(-size // (256 * each)))
        launch(kernel, grid, 256, x.as_strided(*axes(x)), y.view(-1), threshold, np.float32(scale), seed, offset)
    return y
