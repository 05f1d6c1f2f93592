"""Merging the parts of attention whose keys several warps share."""

import math

import numpy as np
from numba import cuda, float32, uint64

from touchstone.backends.numba.lib.online import fold, log_sum, shift

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
    """A warp for each row; a part without keys has an lse of -inf and no weight."""
    o = cuda.local.array(HELD, float32)
    row, dim, lane = uint64(cuda.blockIdx.x), uint64(parts.shape[1]), uint64(cuda.threadIdx.x)
    m, l = _LOW, float32(0)
    for n in range(uint64(HELD)):
        o[n] = float32(0)
    for split in range(uint64(splits)):
        place, before = row * uint64(splits) + split, m
        m, l = fold(m, l, part_lse[place])
        kept, p = math.exp(before - shift(m)), math.exp(part_lse[place] - shift(m))
        for n in range(uint64(HELD)):
            d = n * uint64(32) + lane
            if d < dim:
                o[n] = o[n] * kept + p * parts[place, d]
    write(o, m, l, target, lse, row)
