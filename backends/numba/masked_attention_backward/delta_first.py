"""delta_first: delta (and lse in units of log 2) from a kernel of its own; every tile is masked."""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.attention._launch import padded_width, strided
from touchstone.backends.numba.attention_backward._delta import launch_delta
from touchstone.backends.numba.attention_backward._launch import TILES
from touchstone.backends.numba.lib.attention_tiles import accumulate, load_tile, multiply
from touchstone.backends.numba.masked_attention._mods import after_dropout, given, masked_score, numbers, rule
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention_backward import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods
from touchstone.backends.signatures.masked_attention_backward import checked_sizes
from touchstone.backends.variants import variant

_LOG2_E = np.float32(math.log2(math.e))


@cuda.jit(device=True)
def _gradients(dot, dp, delta, lse2, bias, slopes, seg_q, seg_k, b, h, i, j, about, kept):
    """What query i multiplies value j by, and the gradient of their score, without the scale."""
    seq_q, seq_k = delta.shape[2], bias.shape[4]
    if i >= seq_q or j >= seq_k:
        return float32(0), float32(0)
    score, slope = masked_score(dot, bias, slopes, seg_q, seg_k, b, h, i, j, seq_k - seq_q, about)
    p = math.exp2(score * _LOG2_E - lse2[b, h, uint64(i)])
    pair = uint64(b) * uint64(delta.shape[1]) + uint64(h)
    weight = after_dropout(float32(1), pair, i, j, seq_q, seq_k, kept)
    return p * weight, p * slope * (weight * dp - delta[b, h, uint64(i)])


@functools.cache
def _dq_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def masked_dq(
        q, k, v, delta, lse2, do, bias, slopes, seg_q, seg_k, dq, scale, softcap, window, causal, threshold, keep_scale,
        seed, offset
    ):  # fmt: skip
        q_tile = cuda.shared.array((own, pitch), float32)
        do_tile = cuda.shared.array((own, pitch), float32)
        k_tile = cuda.shared.array((step, pitch), float32)
        v_tile = cuda.shared.array((step, pitch), float32)
        ds_tile = cuda.shared.array((own, scores_pitch), float32)
        thread = cuda.threadIdx.x & (threads - 1)  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        heads, seq_q, seq_k, dim = dq.shape[1], dq.shape[2], k.shape[3], dq.shape[3]
        tiles = (seq_q + own - 1) // own
        top, pair = cuda.blockIdx.x % tiles * own, cuda.blockIdx.x // tiles
        batch, head = pair // heads, pair % heads
        k_head = k[0, batch, head // (heads // k.shape[2])]
        v_head = v[0, batch, head // (heads // k.shape[2])]
        about, kept = (scale, softcap, window, causal), (threshold, keep_scale, seed, offset)

        load_tile(q_tile, q[0, batch, head], top, thread, threads)
        load_tile(do_tile, do[0, batch, head], top, thread, threads)
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
                for r in range(uint64(R)):  # too long a body to unroll: indices that may not be negative
                    for c in range(uint64(C)):
                        i, j = top + ty + TY * int64(r), start + tx + 8 * int64(c)
                        _, ds = _gradients(
                            s[r, c], dp[r, c], delta, lse2, bias, slopes, seg_q, seg_k, uint64(batch), uint64(head),
                            i, j, about, kept
                        )  # fmt: skip
                        ds_tile[uint64(ty + TY * int64(r)), uint64(tx + 8 * int64(c))] = ds
            cuda.syncwarp()  # eight threads of one warp write and read a row of ds_tile
            if top + ty < seq_q:
                accumulate(acc, ds_tile, k_tile, ty, tx, step)
            start += step

        for r in range(R):
            i = top + ty + TY * r
            for c in range(W):
                if i < seq_q and tx + 8 * c < dim:
                    dq[uint64(batch), uint64(head), uint64(i), uint64(tx + 8 * c)] = acc[r, c] * scale

    return masked_dq


@functools.cache
def _dkdv_kernel(width):
    own, step, threads = TILES[width]
    TY = threads // 8
    R, C, W = own // TY, step // 8, width // 8
    pitch, scores_pitch = width + 1, step + 1

    @cuda.jit
    def masked_dkdv(
        q, k, v, delta, lse2, do, bias, slopes, seg_q, seg_k, dk, dv, scale, softcap, window, causal, threshold,
        keep_scale, seed, offset
    ):  # fmt: skip
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
        about, kept = (scale, softcap, window, causal), (threshold, keep_scale, seed, offset)

        load_tile(k_tile, k[0, batch, head_kv], left, thread, threads)
        load_tile(v_tile, v[0, batch, head_kv], left, thread, threads)
        s, dp = cuda.local.array((R, C), float32), cuda.local.array((R, C), float32)
        dk_acc, dv_acc = cuda.local.array((R, W), float32), cuda.local.array((R, W), float32)
        for r in range(R):
            for c in range(W):
                dk_acc[r, c], dv_acc[r, c] = float32(0), float32(0)
        q_heads, do_heads = q[0, uint64(batch)], do[0, uint64(batch)]
        head = head_kv * group
        while head < (head_kv + 1) * group:
            start = 0
            while start < seq_q:
                cuda.syncthreads()  # the tiles before are used
                load_tile(q_tile, q_heads[uint64(head)], start, thread, threads)
                load_tile(do_tile, do_heads[uint64(head)], start, thread, threads)
                cuda.syncthreads()
                if left + ty < seq_k:
                    multiply(s, k_tile, q_tile, ty, tx, dim)  # transposed: a row is a key
                    multiply(dp, v_tile, do_tile, ty, tx, dim)
                    for c in range(uint64(C)):  # as above
                        for r in range(uint64(R)):
                            i, j = start + tx + 8 * int64(c), left + ty + TY * int64(r)
                            weight, ds = _gradients(
                                s[r, c], dp[r, c], delta, lse2, bias, slopes, seg_q, seg_k, uint64(batch), uint64(head),
                                i, j, about, kept
                            )  # fmt: skip
                            p_tile[uint64(ty + TY * int64(r)), uint64(tx + 8 * int64(c))] = weight
                            ds_tile[uint64(ty + TY * int64(r)), uint64(tx + 8 * int64(c))] = ds
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
                    place = uint64(batch), uint64(head_kv), uint64(j), uint64(tx + 8 * c)
                    dk[place] = dk_acc[r, c] * scale
                    dv[place] = dv_acc[r, c]

    return masked_dkdv


@variant(needs="shuffles")
def delta_first(
    q,
    k,
    v,
    o,
    lse,
    do,
    bias,
    slopes,
    seg_q,
    seg_k,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q
    (B, Sq), seg_k (B, Sk) -> dq, dk, dv. Source: [dao2023flash2]."""
    optional = {"bias": bias, "slopes": slopes, "seg_q": seg_q, "seg_k": seg_k}
    B, Hq, Sq, D, Hkv, Sk = checked_sizes(q, k, v, o, lse, do, **optional)
    mods = checked_mods(q, k, *optional.values(), causal, window, softcap, scale, p, seed, offset)
    dq, dk, dv = empty_outputs(q, k)
    width = padded_width(D)
    own, _, threads = TILES[width]
    operands = (*strided(q, k, v), *launch_delta(o, lse, do), *strided(do), *given(mods, q, k))
    about = (*numbers(mods), *rule(mods))
    if dq.numel():
        launch(_dq_kernel(width), B * Hq * -(-Sq // own), threads, *operands, dq, *about)
    if dk.numel():
        launch(_dkdv_kernel(width), B * Hkv * -(-Sk // own), threads, *operands, dk, dv, *about)
    return dq, dk, dv
