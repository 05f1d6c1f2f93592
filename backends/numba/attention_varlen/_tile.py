"""A tile of queries of one sequence among others, for every variant."""

import functools
import math

import numpy as np
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.lib.attention_tiles import accumulate, multiply

LOW = np.float32(-math.inf)
TILES = {64: (64, 32), 128: (32, 32), 256: (16, 16)}  # queries and keys a tile; at most 48 KB


@cuda.jit(device=True)
def load_rows(tile, x, first, length, head, top, thread, threads):
    """The rows of a sequence, of x (T, H, D), from its row `top` on; zeros beyond its length and the last column."""
    rows, width = tile.shape[0], tile.shape[1] - 1
    e = thread
    while e < rows * width:
        r, d = e // width, e % width
        value = float32(0)
        if top + r < length and d < x.shape[2]:
            value = float32(x[uint64(first + top + r), uint64(head), uint64(d)])
        tile[uint64(r), uint64(d)] = value
        e += threads


@cuda.jit(device=True)
def sequence_at(cu_q, cu_k, b, total):
    """First row and length of sequence b in q, and in k and v. The one after the last is the rows of q that belong to
    none: it has no keys."""
    number = cu_q.shape[0] - 1
    first_q, first_k = int64(cu_q[uint64(b)]), int64(cu_k[uint64(b)])
    end_q, end_k = int64(total), first_k
    if b < number:
        end_q, end_k = int64(cu_q[uint64(b + 1)]), int64(cu_k[uint64(b + 1)])
    return first_q, end_q - first_q, first_k, end_k - first_k


@functools.cache
def attend_for(width):
    """The device function for heads of up to `width` columns."""
    queries, keys = TILES[width]
    R, C, W = queries // 16, keys // 8, width // 8
    pitch, p_pitch = width + 1, keys + 1

    @cuda.jit(device=True)
    def attend(q, k, v, o, lse, first_q, seq_q, first_k, seq_k, top, head, scale, causal):
        q_tile = cuda.shared.array((queries, pitch), float32)
        kv_tile = cuda.shared.array((keys, pitch), float32)  # keys, then their values
        p_tile = cuda.shared.array((queries, p_pitch), float32)
        thread = cuda.threadIdx.x & 127  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        dim, reader = o.shape[2], head // (o.shape[1] // k.shape[1])
        shift = seq_k - seq_q if causal else seq_k
        last = min(seq_k, max(0, top + queries + shift))  # the keys from here on no query of the tile sees
        working = top + ty < seq_q

        load_rows(q_tile, q, first_q, seq_q, head, top, thread, 128)
        s, acc = cuda.local.array((R, C), float32), cuda.local.array((R, W), float32)
        m, l = cuda.local.array(R, float32), cuda.local.array(R, float32)
        for r in range(R):
            m[r], l[r] = LOW, float32(0)
            for c in range(W):
                acc[r, c] = float32(0)
        start = 0
        while start < last:
            cuda.syncthreads()  # the values of the tile before are used
            load_rows(kv_tile, k, first_k, seq_k, reader, start, thread, 128)
            cuda.syncthreads()
            if working:
                multiply(s, q_tile, kv_tile, ty, tx, dim)
            for r in range(R):
                limit = min(seq_k, top + ty + 16 * r + shift + 1)
                top_score = m[r]
                for c in range(C):
                    s[r, c] = s[r, c] * scale if start + tx + 8 * c < limit else LOW
                    top_score = max(top_score, s[r, c])
                for lane in (4, 2, 1):
                    top_score = max(top_score, cuda.shfl_xor_sync(0xFFFFFFFF, top_score, lane))
                base = float32(0) if abs(top_score) == -LOW else top_score  # inf - inf is NaN
                alpha = math.exp(m[r] - base)
                m[r] = top_score
                total = float32(0)
                for c in range(C):
                    p = math.exp(s[r, c] - base)
                    p_tile[ty + 16 * r, tx + 8 * c] = p
                    total += p
                l[r] = l[r] * alpha + total  # of this thread's columns
                for c in range(W):
                    acc[r, c] *= alpha
            cuda.syncthreads()  # the keys are used
            load_rows(kv_tile, v, first_k, seq_k, reader, start, thread, 128)
            cuda.syncthreads()
            if working:
                accumulate(acc, p_tile, kv_tile, ty, tx, min(keys, seq_k - start))
            start += keys

        for r in range(R):
            total = l[r]
            for lane in (4, 2, 1):
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, lane)
            if total == float32(0):  # a row that sees nothing: zeros and m = -inf
                total = float32(1)
            i = top + ty + 16 * r
            if i < seq_q:
                row = uint64(first_q + i)
                for c in range(W):
                    if tx + 8 * c < dim:
                        o[row, uint64(head), uint64(tx + 8 * c)] = acc[r, c] / total
                if tx == 0:
                    lse[uint64(head), row] = m[r] + math.log(total)

    return attend
