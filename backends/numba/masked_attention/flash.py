"""flash: online softmax over tiles of k and v, on CUDA cores; every tile is masked."""

import functools
import math

import torch
from numba import cuda, float32, int64, uint64

from touchstone.backends.numba.attention._launch import padded_width, strided
from touchstone.backends.numba.lib.attention_tiles import accumulate, load_tile, multiply
from touchstone.backends.numba.masked_attention._mods import LOW, after_dropout, given, masked_score, numbers, rule
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods, checked_sizes
from touchstone.backends.variants import variant

_TILES = {64: (64, 32), 128: (32, 32), 256: (16, 16)}  # queries and keys a tile; at most 48 KB


@cuda.jit(device=True)
def _row_max(x):
    """Of the eight threads of a row."""
    for lane in (4, 2, 1):
        x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, lane))
    return x


@cuda.jit(device=True)
def _row_sum(x):
    for lane in (4, 2, 1):
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, lane)
    return x


@functools.cache
def _kernel(width):
    queries, keys = _TILES[width]
    R, C, W = queries // 16, keys // 8, width // 8
    pitch, p_pitch = width + 1, keys + 1

    @cuda.jit
    def flash(
        q, k, v, bias, slopes, seg_q, seg_k, o, lse, scale, softcap, window, causal, threshold, keep_scale, seed, offset
    ):
        q_tile = cuda.shared.array((queries, pitch), float32)
        kv_tile = cuda.shared.array((keys, pitch), float32)  # keys, then their values
        p_tile = cuda.shared.array((queries, p_pitch), float32)
        thread = cuda.threadIdx.x & 127  # which the compiler thus knows is not negative
        ty, tx = thread // 8, thread % 8
        heads, seq_q, seq_k, dim = o.shape[1], o.shape[2], k.shape[3], o.shape[3]
        tiles = (seq_q + queries - 1) // queries
        top, pair = cuda.blockIdx.x % tiles * queries, cuda.blockIdx.x // tiles
        batch, head = pair // heads, pair % heads
        k_head = k[0, batch, head // (heads // k.shape[2])]
        v_head = v[0, batch, head // (heads // k.shape[2])]
        about, kept = (scale, softcap, window, causal), (threshold, keep_scale, seed, offset)
        working = top + ty < seq_q

        load_tile(q_tile, q[0, batch, head], top, thread, 128)
        s, acc = cuda.local.array((R, C), float32), cuda.local.array((R, W), float32)
        m, l = cuda.local.array(R, float32), cuda.local.array(R, float32)
        for r in range(R):
            m[r], l[r] = LOW, float32(0)
            for c in range(W):
                acc[r, c] = float32(0)
        start = 0
        while start < seq_k:
            cuda.syncthreads()  # the values of the tile before are used
            load_tile(kv_tile, k_head, start, thread, 128)
            cuda.syncthreads()
            if working:
                multiply(s, q_tile, kv_tile, ty, tx, dim)
            for r in range(uint64(R)):  # too long a body to unroll: indices that may not be negative
                i, top_score = top + ty + 16 * int64(r), m[r]
                for c in range(uint64(C)):
                    j, score = start + tx + 8 * int64(c), LOW
                    if i < seq_q and j < seq_k:
                        b, h, shift = uint64(batch), uint64(head), seq_k - seq_q
                        score, _ = masked_score(s[r, c], bias, slopes, seg_q, seg_k, b, h, i, j, shift, about)
                    s[r, c] = score
                    top_score = max(top_score, score)
                top_score = _row_max(top_score)
                base = float32(0) if abs(top_score) == -LOW else top_score  # inf - inf is NaN
                alpha = math.exp(m[r] - base)
                m[r], total = top_score, float32(0)
                for c in range(uint64(C)):
                    p = math.exp(s[r, c] - base)
                    total += p
                    j = start + tx + 8 * int64(c)
                    p = after_dropout(p, pair, i, j, seq_q, seq_k, kept)
                    p_tile[uint64(ty + 16 * int64(r)), uint64(tx + 8 * int64(c))] = p
                l[r] = l[r] * alpha + total  # of this thread's columns
                for c in range(uint64(W)):
                    acc[r, c] *= alpha
            cuda.syncthreads()  # the keys are used
            load_tile(kv_tile, v_head, start, thread, 128)
            cuda.syncthreads()
            if working:
                accumulate(acc, p_tile, kv_tile, ty, tx, min(keys, seq_k - start))
            start += keys

        for r in range(R):
            total, i = _row_sum(l[r]), top + ty + 16 * r
            if total == float32(0):  # a row that sees nothing: zeros and m = -inf
                total = float32(1)
            if i < seq_q:
                for c in range(W):
                    if tx + 8 * c < dim:
                        o[batch, head, i, tx + 8 * c] = acc[r, c] / total
                if tx == 0:
                    lse[batch, head, i] = m[r] + math.log(total)

    return flash


@variant(needs="shuffles")
def flash(
    q,
    k,
    v,
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
) -> tuple[torch.Tensor, torch.Tensor]:
    """q (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,), seg_q (B, Sq), seg_k (B, Sk) -> o
    (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    B, Hq, Sq, D, _, _ = checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    width = padded_width(D)
    operands = (*strided(q, k, v), *given(mods, q, k), o, lse)
    grid = B * Hq * -(-Sq // _TILES[width][0])
    launch(_kernel(width), grid, 128, *operands, *numbers(mods), *rule(mods))
    return o, lse
