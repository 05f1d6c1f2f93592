"""naive: scores, softmax and product with v, one thread per output, in three launches around a float32 score matrix."""

import math

import numpy as np
import torch
from numba import cuda, float32, int64

from touchstone.backends.numba.attention._launch import score_factor, strided
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.attention import checked_sizes, empty_outputs
from touchstone.backends.variants import variant

_LOW = np.float32(-math.inf)


@cuda.jit
def _scores(q, k, s, scale, causal):
    # One thread per score: s = scale * q . k, -inf where causality hides the key.
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= s.size:
        return
    heads, seq_q, seq_k = s.shape[1], s.shape[2], s.shape[3]
    j, i = index % seq_k, index // seq_k % seq_q
    batch, head = index // seq_k // seq_q // heads, index // seq_k // seq_q % heads
    q_row = q[0, batch, head, i]
    k_row = k[0, batch, head // (heads // k.shape[2]), j]

    score = _LOW
    if not causal or j <= i + (seq_k - seq_q):
        total = float32(0)
        d = 0
        while d < q_row.shape[0]:
            total += float32(q_row[d]) * float32(k_row[d])
            d += 1
        score = total * scale
    s[batch, head, i, j] = score


@cuda.jit
def _softmax(s, lse):
    # One thread per row of scores: probabilities in place, and lse.
    index = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if index >= lse.size:
        return
    heads, seq_q, seq_k = s.shape[1], s.shape[2], s.shape[3]
    batch, head, i = index // seq_q // heads, index // seq_q % heads, index % seq_q
    row = s[batch, head, i]

    # max keeps a number beside a NaN and exp does not: a NaN reaches the sum.
    m = _LOW
    j = 0
    while j < seq_k:
        m = max(m, row[j])
        j += 1
    base = float32(0) if abs(m) == -_LOW else m  # inf - inf is NaN: such a row stays unshifted
    l = float32(0)
    j = 0
    while j < seq_k:
        l += math.exp(row[j] - base)
        j += 1
    if l == float32(0):  # a row that sees nothing: zeros and m = -inf
        l = float32(1)
    j = 0
    while j < seq_k:
        row[j] = math.exp(row[j] - base) / l
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
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq); 4·B·Hq·Sq·Sk bytes [vaswani2017]."""
    B, Hq, Sq, D, _, Sk = checked_sizes(q, k, v)
    o, lse = empty_outputs(q)
    if o.numel() == 0:
        return o, lse
    s = torch.empty((B, Hq, Sq, Sk), dtype=torch.float32, device=q.device)
    if Sk:
        launch(_scores, -(-s.numel() // 128), 128, *strided(q, k), s, score_factor(scale, D), causal)
    launch(_softmax, -(-lse.numel() // 32), 32, s, lse)
    launch(_values, -(-o.numel() // 128), 128, s, *strided(v), o)
    return o, lse
