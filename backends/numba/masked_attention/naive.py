"""naive: masked scores, softmax and product with v, one thread per output, around a float32 score matrix."""

import math

import torch
from numba import cuda, float32, int64

from touchstone.backends.numba.attention._launch import strided
from touchstone.backends.numba.masked_attention._mods import LOW, after_dropout, given, masked_score, numbers, rule
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import empty_outputs
from touchstone.backends.signatures.masked_attention import checked_mods, checked_sizes
from touchstone.backends.variants import variant


@cuda.jit
def _scores(q, k, bias, slopes, seg_q, seg_k, s, scale, softcap, window, causal):
    # One thread per score.
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= s.size:
        return
    heads, seq_q, seq_k = s.shape[1], s.shape[2], s.shape[3]
    j, i = index % seq_k, index // seq_k % seq_q
    batch, head = index // seq_k // seq_q // heads, index // seq_k // seq_q % heads
    q_row = q[0, batch, head, i]
    k_row = k[0, batch, head // (heads // k.shape[2]), j]
    total = float32(0)
    d = 0
    while d < q_row.shape[0]:
        total += float32(q_row[d]) * float32(k_row[d])
        d += 1
    about, shift = (scale, softcap, window, causal), seq_k - seq_q
    score, _ = masked_score(total, bias, slopes, seg_q, seg_k, batch, head, i, j, shift, about)
    s[batch, head, i, j] = score


@cuda.jit
def _softmax(s, lse, threshold, keep_scale, seed, offset):
    # One thread per row of scores: probabilities in place, after dropout, and lse.
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= lse.size:
        return
    heads, seq_q, seq_k = s.shape[1], s.shape[2], s.shape[3]
    batch, head, i = index // seq_q // heads, index // seq_q % heads, index % seq_q
    row = s[batch, head, i]

    # max keeps a number beside a NaN and exp does not: a NaN reaches the sum.
    m = LOW
    j = 0
    while j < seq_k:
        m = max(m, row[j])
        j += 1
    base = float32(0) if abs(m) == -LOW else m  # inf - inf is NaN: such a row stays unshifted
    l = float32(0)
    j = 0
    while j < seq_k:
        l += math.exp(row[j] - base)
        j += 1
    if l == float32(0):  # a row that sees nothing: zeros and m = -inf
        l = float32(1)
    about = (threshold, keep_scale, seed, offset)
    j = 0
    while j < seq_k:
        p = math.exp(row[j] - base) / l
        row[j] = after_dropout(p, index // seq_q, i, j, seq_q, seq_k, about)
        j += 1
    lse[batch, head, i] = m + math.log(l)


@cuda.jit
def _values(p, v, o):
    # One thread per element of o.
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= o.size:
        return
    heads, seq_q, dim = o.shape[1], o.shape[2], o.shape[3]
    d, i = index % dim, index // dim % seq_q
    batch, head = index // dim // seq_q // heads, index // dim // seq_q % heads
    p_row = p[batch, head, i]
    v_col = v[0, batch, head // (heads // v.shape[2]), :, d]

    total = float32(0)
    j = 0
    while j < v_col.shape[0]:
        total += p_row[j] * float32(v_col[j])
        j += 1
    o[batch, head, i, d] = total


@variant()
def naive(
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
    (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes. Source: [vaswani2017]."""
    B, Hq, Sq, _, _, Sk = checked_sizes(q, k, v, bias, slopes, seg_q, seg_k)
    mods = checked_mods(q, k, bias, slopes, seg_q, seg_k, causal, window, softcap, scale, p, seed, offset)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    if Sk:
        launch(_scores, -(-s.numel() // 128), 128, *strided(q, k), *given(mods, q, k), s, *numbers(mods))
    launch(_softmax, -(-lse.numel() // 32), 32, s, lse, *rule(mods))
    launch(_values, -(-o.numel() // 128), 128, s, *strided(v), o)
    return o, lse
