"""delta_first: delta (and lse in units of log 2) from a kernel of its own; causal tiles pruned; exp2."""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_backward._delta import launch_delta
from touchstone.backends.numba.attention_backward._launch import TILES
from touchstone.backends.numba.lib.attention_tiles import accumulate, load_tile, multiply
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_HIGH = np.float32(math.inf)


@functools.cache
def _dq_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def first_dq(q, k, v, delta, lse2, do, dq, scale, scale2, causal):
        q_tile = cuda.shared.array((own, pitch), float32)
        do_tile = cuda.shared.array((own, pitch), float32)
        k_tile = cuda.shared.array((step, pitch), float32)
        v_tile = cuda.shared.array((step, pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        thread = cuda.threadIdx.x & (threads - 1)  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        heads, seq_q, seq_k, dim = dq.shape[1], dq.shape[2], k.shape[3], dq.shape[3]
        tiles = (seq_q + own - 1) // own
        top, pair = (tiles - 1 - cuda.blockIdx.x % tiles) * own, cuda.blockIdx.x // tiles  # most keys first
        batch, head = pair // heads, pair % heads
        k_head = k[0, batch, head // (heads // k.shape[2])]
        v_head = v[0, batch, head // (heads // k.shape[2])]
        # Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift
        # is so large that only Sk hides a key.
        shift = seq_k - seq_q if causal else seq_k
        full = min(seq_k, max(0, top + shift + 1)) // step * step
        last = min(seq_k, max(0, top + own + shift))

        load_tile(q_tile, q[0, batch, head], top, thread, threads)
        load_tile(do_tile, do[0, batch, head], top, thread, threads)
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        acc = cuda.local.array((R, W), float32)
        delta_i, lse_i = cuda.local.array(R, float32), cuda.local.array(R, float32)
        for r in range(R):
            i = top + ty + TY * r
            delta_i[r] = delta[batch, head, i] if i < seq_q else float32(0)
            lse_i[r] = lse2[batch, head, i] if i < seq_q else _HIGH
            for c in range(W):
                acc[r, c] = float32(0)
        start = 0
        while start < last:
            cuda.syncthreads()  # the tiles before are used
            load_tile(k_tile, k_head, start, thread, threads)
            load_tile(v_tile, v_head, start, thread, threads)
            cuda.syncthreads()
            if top + ty < seq_q:
                multiply(s, q_tile, k_tile, ty, tx, dim)
                multiply(dp, do_tile, v_tile, ty, tx, dim)
                for r in range(R):
                    i = ty + TY * r
                    limit = min(seq_k, top + i + shift + 1)
                    for c in range(C):
                        p = math.exp2(cuda.fma(s[r, c], scale2, -lse_i[r]))
                        if start >= full and start + tx + 8 * c >= limit:
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
                    dq[batch, head, i, tx + 8 * c] = acc[r, c] * scale

    return first_dq


@functools.cache
def _dkdv_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def first_dkdv(q, k, v, delta, lse2, do, dk, dv, scale, scale2, causal):
        k_tile = cuda.shared.array((own, pitch), float32)
        v_tile = cuda.shared.array((own, pitch), float32)
        q_tile = cuda.shared.array((step, pitch), float32)
        do_tile = cuda.shared.array((step, pitch), float32)
        p_tile = cuda.shared.array((own, scores_pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        thread = cuda.threadIdx.x & (threads - 1)
        ty, tx = thread // 8, thread % 8
        heads_kv, seq_q, seq_k, dim = dk.shape[1], q.shape[3], dk.shape[2], dk.shape[3]
        tiles, group = (seq_k + own - 1) // own, q.shape[2] // heads_kv
        left, pair = cuda.blockIdx.x % tiles * own, cuda.blockIdx.x // tiles
        batch, head_kv = pair // heads_kv, pair % heads_kv
        # Queries before `first` see no key of the tile, from `full` on all of them.
        shift = seq_k - seq_q if causal else seq_k
        first, full = max(0, left - shift) // step * step, max(0, left + own - 1 - shift)

        load_tile(k_tile, k[0, batch, head_kv], left, thread, threads)
        load_tile(v_tile, v[0, batch, head_kv], left, thread, threads)
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        dk_acc, dv_acc = cuda.local.array((R, W), float32), cuda.local.array((R, W), float32)
        for r in range(R):
            for c in range(W):
                dk_acc[r, c], dv_acc[r, c] = float32(0), float32(0)
        q_heads, do_heads = q[0, uint64(batch)], do[0, uint64(batch)]
        delta_heads, lse_heads = delta[uint64(batch)], lse2[uint64(batch)]
        head = head_kv * group
        while head < (head_kv + 1) * group:
            start = first
            while start < seq_q:
                cuda.syncthreads()  # the tiles before are used
                load_tile(q_tile, q_heads[uint64(head)], start, thread, threads)
                load_tile(do_tile, do_heads[uint64(head)], start, thread, threads)
                cuda.syncthreads()
                if left + ty < seq_k:
                    multiply(s, k_tile, q_tile, ty, tx, dim)  # transposed: a row is a key
                    multiply(dp, v_tile, do_tile, ty, tx, dim)
                    for c in range(C):
                        i = start + tx + 8 * c
                        delta_i = delta_heads[uint64(head), uint64(i)] if i < seq_q else float32(0)
                        lse_i = lse_heads[uint64(head), uint64(i)] if i < seq_q else _HIGH
                        for r in range(R):
                            j = ty + TY * r
                            p = math.exp2(cuda.fma(s[r, c], scale2, -lse_i))
                            if i >= seq_q or (start < full and left + j > i + shift):
                                p = float32(0)  # or NaN, of 0 times a key's -inf
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
                    dk[batch, head_kv, j, tx + 8 * c] = dk_acc[r, c] * scale
                    dv[batch, head_kv, j, tx + 8 * c] = dv_acc[r, c]

    return first_dkdv


@variant(needs="shuffles")
def delta_first(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv. Source: [triton2022]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    width, factor = padded_width(D), score_factor(scale, D)
    own, _, threads = TILES[width]
    delta, lse2 = launch_delta(o, lse, do)
    operands = (*strided(q, k, v), delta, lse2, *strided(do))
    factors = (factor, factor * np.float32(math.log2(math.e)), causal)
    if dq.numel():
        launch(_dq_kernel(width), B * Hq * -(-Sq // own), threads, *operands, dq, *factors)
    if dk.numel():
        launch(_dkdv_kernel(width), B * Hkv * -(-Sk // own), threads, *operands, dk, dv, *factors)
    return dq, dk, dv
