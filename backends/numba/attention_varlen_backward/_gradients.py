"""The gradient kernels: a block owns a tile of one sequence's rows, of dq or of dk and dv, and walks over the rows
of the same sequence on the other side. Rows that belong to no sequence have nobody on the other side: zeros."""

import functools
import math

import numpy as np
from numba import cuda, float32, uint64

from touchstone.backends.numba.attention_backward._launch import TILES
from touchstone.backends.numba.attention_varlen._tile import load_rows, sequence_at
from touchstone.backends.numba.lib.attention_tiles import accumulate, multiply

_HIGH = np.float32(math.inf)


@functools.cache
def dq_for(width):
    """The kernel of dq for heads of up to `width` columns."""
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def varlen_dq(q, k, v, delta, lse2, do, cu_q, cu_k, dq, tiles, scale, scale2, causal):
        q_tile = cuda.shared.array((own, pitch), float32)
        do_tile = cuda.shared.array((own, pitch), float32)
        k_tile = cuda.shared.array((step, pitch), float32)
        v_tile = cuda.shared.array((step, pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        thread = cuda.threadIdx.x & (threads - 1)  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        total, heads, dim = dq.shape[0], dq.shape[1], dq.shape[2]
        tile, pair = cuda.blockIdx.x % tiles, cuda.blockIdx.x // tiles
        head, reader = pair % heads, pair % heads // (heads // k.shape[2])
        first_q, seq_q, first_k, seq_k = sequence_at(cu_q[0], cu_k[0], pair // heads, total)
        shift = seq_k - seq_q if causal else seq_k  # so large that only the number of keys hides one
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        acc = cuda.local.array((R, W), float32)
        delta_i, lse_i = cuda.local.array(R, float32), cuda.local.array(R, float32)

        # Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
        top = tile * own
        while top < seq_q:
            cuda.syncthreads()  # the tiles of the round before are used
            load_rows(q_tile, q[0], first_q, seq_q, head, top, thread, threads)
            load_rows(do_tile, do[0], first_q, seq_q, head, top, thread, threads)
            for r in range(R):
                i = top + ty + TY * r
                delta_i[r] = delta[uint64(head), uint64(first_q + i)] if i < seq_q else float32(0)
                lse_i[r] = lse2[uint64(head), uint64(first_q + i)] if i < seq_q else _HIGH
                for c in range(W):
                    acc[r, c] = float32(0)
            last = min(seq_k, max(0, top + own + shift))
            start = 0
            while start < last:
                cuda.syncthreads()  # the tiles before are used
                load_rows(k_tile, k[0], first_k, seq_k, reader, start, thread, threads)
                load_rows(v_tile, v[0], first_k, seq_k, reader, start, thread, threads)
                cuda.syncthreads()
                if top + ty < seq_q:
                    multiply(s, q_tile, k_tile, ty, tx, dim)
                    multiply(dp, do_tile, v_tile, ty, tx, dim)
                    for r in range(R):
                        i = ty + TY * r
                        limit = min(seq_k, top + i + shift + 1)
                        for c in range(C):
                            p = math.exp2(cuda.fma(s[r, c], scale2, -lse_i[r]))
                            if start + tx + 8 * c >= limit:
                                p = float32(0)
                            ds_tile[uint64(i), uint64(tx + 8 * c)] = p * (dp[r, c] - delta_i[r])
                cuda.syncwarp()  # eight threads of one warp write and read a row of ds_tile
                if top + ty < seq_q:
                    accumulate(acc, ds_tile, k_tile, ty, tx, step)
                start += step

            for r in range(R):
                i = top + ty + TY * r
                for c in range(W):
                    if i < seq_q and tx + 8 * c < dim:
                        dq[uint64(first_q + i), uint64(head), uint64(tx + 8 * c)] = acc[r, c] * scale
            top += tiles * own

    return varlen_dq


@functools.cache
def dkdv_for(width):
    """The kernel of dk and dv for heads of up to `width` columns."""
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def varlen_dkdv(q, k, v, delta, lse2, do, cu_q, cu_k, dk, dv, tiles, scale, scale2, causal):
        k_tile = cuda.shared.array((own, pitch), float32)
        v_tile = cuda.shared.array((own, pitch), float32)
        q_tile = cuda.shared.array((step, pitch), float32)
        do_tile = cuda.shared.array((step, pitch), float32)
        p_tile = cuda.shared.array((own, scores_pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        thread = cuda.threadIdx.x & (threads - 1)
        ty, tx = thread // 8, thread % 8
        total, heads_kv, dim = dk.shape[0], dk.shape[1], dk.shape[2]
        tile, pair, group = cuda.blockIdx.x % tiles, cuda.blockIdx.x // tiles, q.shape[2] // heads_kv
        reader = pair % heads_kv
        first_k, seq_k, first_q, seq_q = sequence_at(cu_k[0], cu_q[0], pair // heads_kv, total)
        shift = seq_k - seq_q if causal else seq_k
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        dk_acc, dv_acc = cuda.local.array((R, W), float32), cuda.local.array((R, W), float32)

        left = tile * own
        while left < seq_k:
            cuda.syncthreads()  # the tiles of the round before are used
            load_rows(k_tile, k[0], first_k, seq_k, reader, left, thread, threads)
            load_rows(v_tile, v[0], first_k, seq_k, reader, left, thread, threads)
            for r in range(R):
                for c in range(W):
                    dk_acc[r, c], dv_acc[r, c] = float32(0), float32(0)
            head = reader * group
            while head < (reader + 1) * group:
                start = max(0, left - shift) // step * step  # queries before see no key of the tile
                while start < seq_q:
                    cuda.syncthreads()  # the tiles before are used
                    load_rows(q_tile, q[0], first_q, seq_q, head, start, thread, threads)
                    load_rows(do_tile, do[0], first_q, seq_q, head, start, thread, threads)
                    cuda.syncthreads()
                    if left + ty < seq_k:
                        multiply(s, k_tile, q_tile, ty, tx, dim)  # transposed: a row is a key
                        multiply(dp, v_tile, do_tile, ty, tx, dim)
                        for c in range(C):
                            i = start + tx + 8 * c
                            delta_i = delta[uint64(head), uint64(first_q + i)] if i < seq_q else float32(0)
                            lse_i = lse2[uint64(head), uint64(first_q + i)] if i < seq_q else _HIGH
                            for r in range(R):
                                j = ty + TY * r
                                p = math.exp2(cuda.fma(s[r, c], scale2, -lse_i))
                                if i >= seq_q or left + j > i + shift:
                                    p = float32(0)
                                p_tile[uint64(j), uint64(tx + 8 * c)] = p
                                ds_tile[uint64(j), uint64(tx + 8 * c)] = p * (dp[r, c] - delta_i)
                    cuda.syncwarp()
                    if left + ty < seq_k:
                        accumulate(dv_acc, p_tile, do_tile, ty, tx, step)
                        accumulate(dk_acc, ds_tile, q_tile, ty, tx, step)
                    start += step
                head += 1

            for r in range(R):
                j = left + ty + TY * r
                for c in range(W):
                    if j < seq_k and tx + 8 * c < dim:
                        dk[uint64(first_k + j), uint64(reader), uint64(tx + 8 * c)] = dk_acc[r, c] * scale
                        dv[uint64(first_k + j), uint64(reader), uint64(tx + 8 * c)] = dv_acc[r, c]
            left += tiles * own

    return varlen_dkdv
