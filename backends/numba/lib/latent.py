"""Attention whose keys have two parts: one that may be the value as well, and a rotary part that all heads share."""

import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.lib.online import fold, shift
from touchstone.backends.numba.lib.reductions import warp_sum
from touchstone.backends.numba.lib.splits import HELD

WARPS, KEYS = 4, 16  # warps of a block, with a row each, and keys of a tile
WIDEST = 576  # columns of a key and a value of its own
_LOW = np.float32(-math.inf)


def row_grid(rows: int, heads: int) -> tuple[int, int]:
    """A grid of four rows a block along x and of key heads, or of sequences, along y; declines more than it has."""
    if heads > 65535:
        raise Unsupported(f"{heads} sequences and key heads; a grid has 65535 rows of blocks")
    return -(-rows // WARPS), heads


def parts_of(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `dim` columns of x and the others; where there are none, any memory will do."""
    return x[..., :dim], x[..., dim:] if x.shape[-1] > dim else x


@cuda.jit(device=True)
def attend(o, q, r, k, t, v, dim_v, rotary, shared, causal, b, key_head, group, first, last, length, scale):
    """The running maximum and sum of this warp's row over the keys first … last − 1 of `length`; o, not normalised, of
    which lane i holds i, i + 32, ... Every warp of the block comes, with a row or not.

    q (B, H, Sq, D) meets k (B, heads, Sk, D), r (B, H, Sq, rotary) meets t (B, Sk, rotary); v (B, heads, Sk, dim_v) is
    k where it is `shared`. The rows of a key head are its `group` query heads' queries.
    """
    tile = cuda.shared.array((KEYS, WIDEST), float32)  # k, t, and v where it is another
    lane, seq, dim = uint64(cuda.threadIdx.x % 32), int64(q.shape[2]), uint64(q.shape[3])
    row = int64(cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32)
    exists, width = row < group * seq, dim + uint64(rotary)
    head, i = uint64(key_head * group + row // seq), uint64(row % seq)
    columns, values = width if shared else width + uint64(dim_v), uint64(0) if shared else width
    last = min(last, length)
    seen = min(last, row % seq + length - seq + 1) if causal else last
    own = cuda.local.array(HELD, float32)
    for n in range(uint64(HELD)):
        d = n * uint64(32) + lane
        o[n] = own[n] = float32(0)
        if exists and d < dim:
            own[n] = float32(q[b, head, i, d])
        elif exists and d < width:
            own[n] = float32(r[b, head, i, d - dim])
    m, l = _LOW, float32(0)
    for start in range(first, last, KEYS):
        filled = uint64(min(KEYS, last - start))
        cuda.syncthreads()  # the tile before is used
        for n in range(uint64(cuda.threadIdx.x), filled * columns, uint64(WARPS * 32)):
            j, d = n // columns, n % columns
            at = uint64(start) + j
            if d < dim:
                tile[j, d] = float32(k[b, key_head, at, d])
            elif d < width:
                tile[j, d] = float32(t[b, at, d - dim])
            else:
                tile[j, d] = float32(v[b, key_head, at, d - width])
        cuda.syncthreads()  # the tile is loaded
        mine = uint64(max(int64(0), min(int64(filled), seen - start))) if exists else uint64(0)
        for j in range(mine):
            dot = float32(0)
            for n in range(uint64(HELD)):
                d = n * uint64(32) + lane
                if d < width:
                    dot += own[n] * tile[j, d]
            s, before = warp_sum(dot) * scale, m
            m, l = fold(m, l, s)
            kept, p = math.exp(before - shift(m)), math.exp(s - shift(m))
            for n in range(uint64(HELD)):
                d = n * uint64(32) + lane
                if d < uint64(dim_v):
                    o[n] = o[n] * kept + p * tile[j, values + d]
    return m, l
