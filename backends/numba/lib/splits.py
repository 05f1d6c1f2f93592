"""Merging the parts of attention whose keys several warps share."""

import math

import numpy as np
from numba import cuda, float32, uint64

from touchstone.backends.numba.lib.online import log_sum, shift
from touchstone.backends.numba.lib.reductions import warp_max

HELD = 18  # columns in each lane: 576 in all
_LOW = np.float32(-math.inf)


@cuda.jit(device=True)
def write(o, m, l, target, lse, row):
    """o, normalised, to row `row` of `target`, and its lse, by one warp."""
    inverse = float32(0) if l == float32(0) else float32(1) / l
    lane = uint64(cuda.threadIdx.x % 32)
    for n in range(uint64(HELD)):
        d = n * uint64(32) + lane
        if d < uint64(target.shape[1]):
            target[row, d] = o[n] * inverse
    if lane == uint64(0):
        lse[row] = log_sum(m, l)


@cuda.jit
def merge(parts, part_lse, target, lse, splits):
    """A warp for each row; a part without keys has an lse of -inf, and its o is not looked at."""
    o = cuda.local.array(HELD, float32)
    row, dim, lane = uint64(cuda.blockIdx.x), uint64(parts.shape[1]), uint64(cuda.threadIdx.x)
    first, m, l = row * uint64(splits), _LOW, float32(0)
    for split in range(lane, uint64(splits), uint64(32)):
        m = max(m, part_lse[first + split])
    m = warp_max(m)
    for n in range(uint64(HELD)):
        o[n] = float32(0)
    for split in range(uint64(splits)):  # the maximum is known: parts are read without waiting for those before
        p = math.exp(part_lse[first + split] - shift(m))
        l += p
        for n in range(uint64(HELD)):
            d = n * uint64(32) + lane
            if d < dim and p != float32(0):
                o[n] += p * parts[first + split, d]
    write(o, m, l, target, lse, row)
