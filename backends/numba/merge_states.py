"""Attention over parts of the keys merged into attention over all of them: o = Σ exp(lse_p − lse)·o_p and lse.

naive: a thread for each element, which goes through the parts with a running maximum and sum [milakov2018]
warp: a warp for each row: its lanes share the parts' weights, then lie along D [dao2023decoding]
vectorised: 16 bytes of a row to a thread, where rows are whole vectors of them; the maximum comes first [xlite2025]
"""

import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.online import fold, log_sum, shift, warp_merge
from touchstone.backends.numba.lib.pointwise import LANES
from touchstone.backends.numba.lib.ptx import fast_exp
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.merge_states import checked
from touchstone.backends.variants import variant

_LOW = np.float32(-math.inf)


@cuda.jit
def _naive(o, lse, merged, of_all):
    dim, columns = uint64(o.shape[2]), uint64(max(o.shape[2], 1))
    at = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    row, d = at // columns, at % columns
    if row >= uint64(o.shape[1]):
        return
    m, l, total = _LOW, float32(0), float32(0)
    for p in range(uint64(o.shape[0])):
        before = m
        m, l = fold(m, l, lse[p, row])
        kept, weight = math.exp(before - shift(m)), math.exp(lse[p, row] - shift(m))
        if d < dim:
            total = total * kept + weight * float32(o[p, row, d])
    if d < dim:
        merged[row, d] = float32(0) if l == float32(0) else total / l
    if d == uint64(0):
        of_all[row] = log_sum(m, l)


@variant()
def naive(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [milakov2018]."""
    (_, rows, dim), (merged, of_all) = checked(o, lse)
    if rows:
        launch(_naive, checked_grid(-(-rows * max(dim, 1) // 128)), 128, o, lse, merged, of_all)
    return merged, of_all


@cuda.jit
def _warp(o, lse, merged, of_all):
    # Every lane has the same maximum and sum after the shuffles.
    row, lane, parts, dim = uint64(cuda.blockIdx.x), uint64(cuda.threadIdx.x), uint64(o.shape[0]), uint64(o.shape[2])
    m, l = _LOW, float32(0)
    for p in range(lane, parts, uint64(32)):
        m, l = fold(m, l, lse[p, row])
    m, l = warp_merge(m, l)
    inverse = float32(0) if l == float32(0) else float32(1) / l
    for d in range(lane, dim, uint64(32)):
        total = float32(0)
        for p in range(parts):
            total += math.exp(lse[p, row] - shift(m)) * float32(o[p, row, d])
        merged[row, d] = total * inverse
    if lane == uint64(0):
        of_all[row] = log_sum(m, l)


@variant(needs="shuffles")
def warp(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32. Source: [dao2023decoding]."""
    (_, rows, _), (merged, of_all) = checked(o, lse)
    if rows:
        launch(_warp, checked_grid(rows), 32, o, lse, merged, of_all)
    return merged, of_all


@cuda.jit
def _vectorised(o, lse, merged, of_all, wide):
    # A block is some threads to a row by some rows; a thread has 16 bytes of each part's row at a time.
    words, held, total = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(LANES, float32)
    parts = uint64(o.shape[0])
    row = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.y) + uint64(cuda.threadIdx.y)
    if row >= uint64(o.shape[1]):
        return
    d = uint64(cuda.threadIdx.x) * uint64(lanes_of(o))
    while d == uint64(0) or d < uint64(o.shape[2]):
        m, base, l, next_lse = _LOW, float32(0), float32(0), _LOW
        for i in range(lanes_of(o)):
            total[i] = float32(0)
        if parts > uint64(0):
            load_vector(o, (uint64(0), row, d), words, 0, wide)
            next_lse = lse[uint64(0), row]
        p = uint64(1)
        while p <= parts:
            for i in range(4):
                held[i] = words[i]
            of_part = next_lse
            if p < parts:  # under way before this part's are wanted
                load_vector(o, (p, row, d), words, 0, wide)
                next_lse = lse[p, row]
            above = max(m, of_part)
            kept = float32(0) if m == _LOW else fast_exp(base - shift(above))
            m, base = above, shift(above)
            weight = fast_exp(of_part - base)
            l = l * kept + weight
            for i in range(lanes_of(o)):
                total[i] = total[i] * kept + weight * unpacked(held, i, o)
            p += uint64(1)
        inverse = float32(0) if l == float32(0) else float32(1) / l
        for i in range(lanes_of(o)):
            total[i] *= inverse
        pack(total, words, 0, merged)
        store_vector(words, 0, merged, (row, d), wide)
        if d == uint64(0):
            of_all[row] = base + math.log(l)
        d += uint64(cuda.blockDim.x) * uint64(lanes_of(o))


@variant()
def vectorised(o, lse) -> tuple[torch.Tensor, torch.Tensor]:
    """o (P, rows, D), lse (P, rows) float32 -> o (rows, D), lse (rows,) float32.

    Rows that are not whole 16-byte vectors are read an element at a time. Source: [xlite2025].
    """
    (_, rows, dim), (merged, of_all) = checked(o, lse)
    if rows:
        length = 16 // o.element_size()
        lanes = min(32, 1 << (max(-(-dim // length), 1) - 1).bit_length())  # threads to a row
        grid, block = checked_grid(-(-rows // (256 // lanes))), (lanes, 256 // lanes)
        launch(_vectorised, grid, block, o, lse, merged, of_all, are_rows_aligned(o))
    return merged, of_all
