"""Dropout: y = x/(1 - p) where Philox's word for the element is at least floor(p·2^32), else 0.

naive: a thread for each element calls Philox and takes one of the four words that it makes [salmon2011]
four: a thread for four elements, which takes all four: a quarter of the multiplications [salmon2011]
"""

import numpy as np
import torch
from numba import cuda, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import dropped_out, element, philox, word_of
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._dropout import axes, checked

# x comes as four axes, y as one.


@cuda.jit
def _naive(x, y, threshold, scale, seed, offset):
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    if e < uint64(y.shape[0]):
        y[e] = dropped_out(element(x, e), word_of(e, uint64(seed), uint64(offset)), threshold, scale)


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


def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    return _by_threads(_four, 4, x, p, seed, offset)


def _by_threads(kernel, each: int, x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """By threads that have `each` elements, in blocks of 256."""
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if size := y.numel():
        grid = checked_grid(-(-size // (256 * each)))
        launch(kernel, grid, 256, x.as_strided(*axes(x)), y.view(-1), threshold, np.float32(scale), seed, offset)
    return y
