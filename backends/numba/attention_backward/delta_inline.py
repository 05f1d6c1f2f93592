"""delta_inline: one kernel for dq, one for dk and dv, each with its own delta."""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.attention_backward._launch import TILES
from touchstone.backends.numba.lib.attention_tiles import accumulate, load_tile, multiply
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_backward import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_HIGH = np.float32(math.inf)


@cuda.jit(device=True)
def load_statistics(delta, lse, do_tile, o_head, lse_head, first, thread):
    """delta and lse of the queries of do_tile, one thread per row; lse is +inf, so that p is 0, for one that sees
    nothing."""
    if thread < delta.shape[0]:
        i = first + thread
        total, value = float32(0), _HIGH
        if i < o_head.shape[0]:
            d = 0
            while d < o_head.shape[1]:
                total += do_tile[thread, d] * float32(o_head[uint64(i), d])
                d += 1
            value = lse_head[uint64(i)]
        delta[thread] = total
        lse[thread] = _HIGH if value == -_HIGH else value


@functools.cache
def _dq_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def inline_dq(q, k, v, o, lse, do, dq, scale, causal):
        q_tile = cuda.shared.array((own, pitch), float32)
        do_tile = cuda.shared.array((own, pitch), float32)
        k_tile = cuda.shared.array((step, pitch), float32)
        v_tile = cuda.shared.array((step, pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        delta_i = cuda.shared.array(own, float32)
        lse_i = cuda.shared.array(own, float32)
        thread = cuda.threadIdx.x & (threads - 1)  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        heads, seq_q, seq_k, dim = dq.shape[1], dq.shape[2], k.shape[3], dq.shape[3]
        tiles = (seq_q + own - 1) // own
        top, pair = cuda.blockIdx.x % tiles * own, cuda.blockIdx.x // tiles
        batch, head = pair // heads, pair % heads
        k_head = k[0, batch, head // (heads // k.shape[2])]
        v_head = v[0, batch, head // (heads // k.shape[2])]

        load_tile(q_tile, q[0, batch, head], top, thread, threads)
        load_tile(do_tile, do[0, batch, head], top, thread, threads)
        cuda.syncthreads()
        load_statistics(delta_i, lse_i, do_tile, o[0, batch, head], lse[0, batch, head], top, thread)
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        acc = cuda.local.array((R, W), float32)
        for r in range(R):
            for c in range(W):
                acc[r, c] = float32(0)
        start = 0
        while start < seq_k:
            cuda.syncthreads()  # the tiles before are used
            load_tile(k_tile, k_head, start, thread, threads)
            load_tile(v_tile, v_head, start, thread, threads)
            cuda.syncthreads()
            if top + ty < seq_q:
                multiply(s, q_tile, k_tile, ty, tx, dim)
                multiply(dp, do_tile, v_tile, ty, tx, dim)
                for r in range(R):
                    for c in range(C):
                        i, j = ty + TY * r, tx + 8 * c
                        visible = start + j < seq_k and (not causal or start + j <= top + i + (seq_k - seq_q))
                        p = math.exp(s[r, c] * scale - lse_i[uint64(i)]) if visible else float32(0)
                        ds_tile[uint64(i), uint64(j)] = p * (dp[r, c] - delta_i[uint64(i)])
            cuda.syncthreads()
            if top + ty < seq_q:
                accumulate(acc, ds_tile, k_tile, ty, tx, step)
            start += step

        for r in range(R):
            i = top + ty + TY * r
            for c in range(W):
                if i < seq_q and tx + 8 * c < dim:
                    dq[batch, head, i, tx + 8 * c] = acc[r, c] * scale

    return inline_dq


@functools.cache
def _dkdv_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def inline_dkdv(q, k, v, o, lse, do, dk, dv, scale, causal):
        k_tile = cuda.shared.array((own, pitch), float32)
        v_tile = cuda.shared.array((own, pitch), float32)
        q_tile = cuda.shared.array((step, pitch), float32)
        do_tile = cuda.shared.array((step, pitch), float32)
        p_tile = cuda.shared.array((own, scores_pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        delta_i = cuda.shared.array(step, float32)
        lse_i = cuda.shared.array(step, float32)
        thread = cuda.threadIdx.x & (threads - 1)
        ty, tx = thread // 8, thread % 8
        heads_kv, seq_q, seq_k, dim = dk.shape[1], q.shape[3], dk.shape[2], dk.shape[3]
        tiles, group = (seq_k + own - 1) // own, q.shape[2] // heads_kv
        left, pair = cuda.blockIdx.x % tiles * own, cuda.blockIdx.x // tiles
        batch, head_kv = pair // heads_kv, pair % heads_kv

        load_tile(k_tile, k[0, batch, head_kv], left, thread, threads)
        load_tile(v_tile, v[0, batch, head_kv], left, thread, threads)
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        dk_acc, dv_acc = cuda.local.array((R, W), float32), cuda.local.array((R, W), float32)
        for r in range(R):
            for c in range(W):
                dk_acc[r, c], dv_acc[r, c] = float32(0), float32(0)
        q_heads, do_heads = q[0, uint64(batch)], do[0, uint64(batch)]
        o_heads, lse_heads = o[0, uint64(batch)], lse[0, uint64(batch)]
        head = head_kv * group
        while head < (head_kv + 1) * group:
            start = 0
            while start < seq_q:
                cuda.syncthreads()  # the tiles before are used
                load_tile(q_tile, q_heads[uint64(head)], start, thread, threads)
                load_tile(do_tile, do_heads[uint64(head)], start, thread, threads)
                cuda.syncthreads()
                o_head, lse_head = o_heads[uint64(head)], lse_heads[uint64(head)]
                load_statistics(delta_i, lse_i, do_tile, o_head, lse_head, start, thread)
                cuda.syncthreads()
                if left + ty < seq_k:
                    multiply(s, k_tile, q_tile, ty, tx, dim)  # transposed: a row is a key
                    multiply(dp, v_tile, do_tile, ty, tx, dim)
                    for r in range(R):
                        for c in range(C):
                            j, i = ty + TY * r, tx + 8 * c
                            # also for no query: 0 times a key's -inf would be NaN
                            visible = start + i < seq_q and (not causal or left + j <= start + i + (seq_k - seq_q))
                            p = math.exp(s[r, c] * scale - lse_i[uint64(i)]) if visible else float32(0)
                            p_tile[uint64(j), uint64(i)] = p
                            ds_tile[uint64(j), uint64(i)] = p * (dp[r, c] - delta_i[uint64(i)])
                cuda.syncthreads()
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

    return inline_dkdv


@variant()
def delta_inline(
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
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv. Source: [dao2022flash]."""
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do)
    dq, dk, dv = empty_outputs(q, k)
    width = padded_width(D)
    own, _, threads = TILES[width]
    operands, factor = strided(q, k, v, o, lse, do), score_factor(scale, D)
    if dq.numel():
        launch(_dq_kernel(width), B * Hq * -(-Sq // own), threads, *operands, dq, factor, causal)
    if dk.numel():
        launch(_dkdv_kernel(width), B * Hkv * -(-Sk // own), threads, *operands, dk, dv, factor, causal)
    return dq, dk, dv
