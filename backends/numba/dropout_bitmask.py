"""Dropout that also returns one bit for each element, 1 where it is kept: y, and 32 bits to a word.

ballot: a thread for each element, and a warp's vote is a word of bits [oneflow2022drop]
four: a thread for four elements and one call of Philox; eight threads join their bits by shuffles [salmon2011]
vectorised: the same for 16 bytes of x in one access; four threads join their bits, or eight [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, int32, int64, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.philox import dropped_out, element, philox, word_of
from touchstone.backends.numba.lib.pointwise import LANES, THREADS, in_lines, load_line, place_of_vector, store_line
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures._dropout import axes, checked, in_one_run, words_of
from touchstone.backends.variants import variant

# x comes as four axes, y as one.


@cuda.jit
def _ballot(x, y, bits, threshold, scale, seed, offset):
    # All lanes vote, also those beyond the last element: their bits are 0.
    e = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    word = word_of(e, uint64(seed), uint64(offset))
    inside = e < uint64(y.shape[0])
    kept = cuda.ballot_sync(0xFFFFFFFF, inside and int64(word) >= threshold)
    if inside:
        y[e] = dropped_out(element(x, e), word, threshold, scale)
        if e & uint64(31) == uint64(0):
            bits[e >> uint64(5)] = int32(kept)


@variant(needs="shuffles")
def ballot(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape and strides, four at most that do not merge -> y of its shape, bits (ceil(n/32),) int32.

    Source: [oneflow2022drop].
    """
    return _by_threads(_ballot, 1, x, p, seed, offset)


@cuda.jit
def _four(x, y, bits, threshold, scale, seed, offset):
    block = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    words = philox(block, uint64(seed), uint64(offset))
    place = int32(block & uint64(7)) * int32(4)
    kept = int32(0)
    for i in range(4):
        e = uint64(4) * block + uint64(i)
        if e < uint64(y.shape[0]):
            y[e] = dropped_out(element(x, e), words[i], threshold, scale)
            if int64(words[i]) >= threshold:
                kept |= int32(1) << (place + int32(i))
    step = 1
    while step < 8:
        kept |= cuda.shfl_xor_sync(0xFFFFFFFF, kept, step)
        step *= 2
    if place == int32(0) and uint64(4) * block < uint64(y.shape[0]):
        bits[block >> uint64(3)] = kept


@variant(needs="shuffles")
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape and strides, four at most that do not merge -> y of its shape, bits (ceil(n/32),) int32.

    Source: [salmon2011].
    """
    return _by_threads(_four, 4, x, p, seed, offset)


@cuda.jit
def _vectorised(x, y, bits, threshold, scale, seed, offset):
    # x and y as one line each; threads beyond its end read zeros, and join their bits too, which are 0.
    _, first = place_of_vector(y)
    place = int32(first & uint64(31))
    values = cuda.local.array(LANES, float32)
    load_line(x, uint64(0), first, values, True)
    kept = int32(0)
    for part in range(lanes_of(y) // 4):
        words = philox((first >> uint64(2)) + uint64(part), uint64(seed), uint64(offset))
        for i in range(4):
            at = 4 * part + i
            values[at] = dropped_out(values[at], words[i], threshold, scale)
            if int64(words[i]) >= threshold and first + uint64(at) < uint64(y.shape[1]):
                kept |= int32(1) << (place + int32(at))
    store_line(values, y, uint64(0), first, True)
    step = 1
    while step < 32 // lanes_of(y):
        kept |= cuda.shfl_xor_sync(0xFFFFFFFF, kept, step)
        step *= 2
    if place == int32(0) and first < uint64(y.shape[1]):
        bits[first >> uint64(5)] = kept


@variant(needs="shuffles")
def vectorised(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape -> y of its shape, bits (ceil(n/32),) int32. Declines x that is not contiguous from a multiple of
    16 bytes on.

    Source: [xlite2025].
    """
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    in_one_run(x)
    if y.numel():
        lines = in_lines(x.view(1, -1), y.view(1, -1))
        launch(_vectorised, lines.grid, THREADS, *lines.matrices, bits, threshold, np.float32(scale), seed, offset)
    return y, bits


def _by_threads(
    kernel, each: int, x: torch.Tensor, p: float, seed: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """By threads that have `each` elements, in blocks of 256."""
    shapes("...", x=x)
    threshold, scale, seed, offset = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    if size := y.numel():
        grid = checked_grid(-(-size // (256 * each)))
        operands = (x.as_strided(*axes(x)), y.view(-1), bits)
        launch(kernel, grid, 256, *operands, threshold, np.float32(scale), seed, offset)
    return y, bits
