"""flash: online softmax over tiles of k and v, on CUDA cores."""

import functools
import math

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends.numba.attention._launch import padded_width, score_factor, strided
from touchstone.backends.numba.lib.attention_tiles import accumulate, load_tile, multiply
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_LOW = np.float32(-math.inf)
_TILES = {64: (64, 32), 128: (32, 32), 256: (16, 16)}  # queries and keys a tile; at most 48 KB


@functools.cache
def _kernel(width):
    queries, keys = _TILES[width]
    R, C, W = queries // 16, keys // 8, width // 8
    pitch, p_pitch = width + 1, keys + 1

    @cuda.jit
    def flash(q, k, v, o, lse, scale, causal):
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
        shift = seq_k - seq_q if causal else seq_k
        last = min(seq_k, max(0, top + queries + shift))  # the keys from here on no query of the tile sees
        working = top + ty < seq_q

        load_tile(q_tile, q[0, batch, head], top, thread, 128)
        s, acc = cuda.local.array((R, C), float32), cuda.local.array((R, W), float32)
        m, l = cuda.local.array(R, float32), cuda.local.array(R, float32)
        for r in range(R):
            m[r], l[r] = _LOW, float32(0)
            for c in range(W):
                acc[r, c] = float32(0)
        start = 0
        while start < last:
            cuda.syncthreads()  # the values of the tile before are used
            load_tile(kv_tile, k_head, start, thread, 128)
            cuda.syncthreads()
            if working:
                multiply(s, q_tile, kv_tile, ty, tx, dim)
            for r in range(R):
                limit = min(seq_k, top + ty + 16 * r + shift + 1)
                top_score = m[r]
                for c in range(C):
                    s[r, c] = s[r, c] * scale if start + tx + 8 * c < limit else _LOW
                    top_score = max(top_score, s[r, c])
                for lane in (4, 2, 1):
                    top_score = max(top_score, cuda.shfl_xor_sync(0xFFFFFFFF, top_score, lane))
                base = float32(0) if abs(top_score) == -_LOW else top_score  # inf - inf is NaN
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
            load_tile(kv_tile, v_head, start, thread, 128)
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
                for c in range(W):
                    if tx + 8 * c < dim:
                        o[batch, head, i, tx + 8 * c] = acc[r, c] / total
                if tx == 0:
                    lse[batch, head, i] = m[r] + math.log(total)

    return flash


@variant(needs="shuffles")
def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Source: [dao2023flash2]."""
    B, Hq, Sq, D, _, _ = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    width = padded_width(D)
    grid = B * Hq * -(-Sq // _TILES[width][0])
    launch(_kernel(width), grid, 128, *strided(q, k, v), o, lse, score_factor(scale, D), causal)
    return o, lse
