"""Attention with what a model does to its scores: one op for causality, a sliding window, documents, a bias, ALiBi's
slopes, a soft-cap and dropout [dong2024].

q, o (B, Hq, Sq, D); k, v (B, Hkv, Sk, D); bias (B, Hq, Sq, Sk) or None; slopes (Hq,) or None; seg_q (B, Sq) and seg_k
(B, Sk) integers, both or neither None; lse (B, Hq, Sq), natural logarithm. With off = Sk − Sq:

s = scale·q·kᵀ; with `softcap` c: s = c·tanh(s/c); then s −= slope_h·|i + off − j|; then s += bias, of which −inf hides.
Query i sees key j where j <= i + off (`causal`), |i + off − j| < window (a query's own key counts), and seg_q = seg_k.
o = z·v with z the probabilities p = softmax(s) of which dropout keeps some, multiplied by 1/(1 − p): `_philox` with the
index ((b·Hq + h)·Sq + i)·Sk + j. lse is that of all scores, without dropout. A query that sees nothing gives zeros and
lse −inf. ValueError: window below 1, softcap not above 0, p outside [0, 1], seed or offset outside [0, 2^63), or only
one of the segments.
"""

import math

import numpy as np
import torch

from touchstone.reference import _masks, _philox


def masked_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: np.ndarray | None,
    slopes: np.ndarray | None,
    seg_q: np.ndarray | None,
    seg_k: np.ndarray | None,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice and what changes the scores -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    _masks.check(window, softcap)
    _both_or_neither(seg_q, seg_k)
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))
    seen = _masks.within(q.shape[2], k.shape[2], causal=causal, window=window)
    if seg_q is not None and seg_k is not None:
        seen = seen & (np.asarray(seg_q)[:, None, :, None] == np.asarray(seg_k)[:, None, None, :])
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    s = s if softcap is None else softcap * np.tanh(s / softcap)
    if slopes is not None:
        s = s - np.asarray(slopes, np.float64)[:, None, None] * abs(_masks.apart(*s.shape[2:]))
    s = np.where(seen, s if bias is None else s + np.asarray(bias, np.float64), -np.inf)
    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(m == -np.inf, 0, m))
    total = e.sum(axis=-1, keepdims=True)
    z = e / np.where(total == 0, 1, total) * _philox.kept(s.shape, p, seed, offset) * _philox.scale(p)
    with np.errstate(divide="ignore"):  # ln 0 is meant to be −inf
        return z @ v, (np.where(m == -np.inf, 0, m) + np.log(total))[..., 0]


def torch_masked_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    seg_q: torch.Tensor | None,
    seg_k: torch.Tensor | None,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice and what changes the scores -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    _masks.check(window, softcap)
    _both_or_neither(seg_q, seg_k)
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    dots = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = _masks.visible(q.shape[2], k.shape[2], seg_q, seg_k, causal=causal, window=window).to(dots.device)
    s = _masks.changed(dots, bias, slopes, softcap=softcap).masked_fill(~seen, -math.inf)
    lse = torch.logsumexp(s, -1)
    probabilities = torch.exp(s - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    # 1, but for scores as -1e30, whose lse has no room for the logarithm of how many keys there are
    total = probabilities.sum(-1, keepdim=True)
    probabilities = probabilities / total.masked_fill(total == 0, 1.0)
    return (probabilities * _masks.weights(s.shape, p=p, seed=seed, offset=offset, device=s.device).to(s)) @ v, lse


def _both_or_neither(seg_q, seg_k) -> None:
    if (seg_q is None) != (seg_k is None):
        raise ValueError("seg_k: expected segments of both queries and keys, or of neither")


def key_by_key(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: np.ndarray | None,
    slopes: np.ndarray | None,
    seg_q: np.ndarray | None,
    seg_k: np.ndarray | None,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """One query at a time over a list of the keys that it sees, the soft-cap by exponentials, and the logarithm of the
    sum one key after another [dong2024]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    (batch, heads, seq_q, dim), seq_k = q.shape, k.shape[2]
    factor = 1 / math.sqrt(dim) if scale is None else scale
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, h, i in np.ndindex(batch, heads, seq_q):
        reader, own = h * k.shape[1] // heads, i + seq_k - seq_q
        first = 0 if window is None else own - window + 1
        last = own if causal else seq_k if window is None else own + window - 1
        keys = list(range(max(first, 0), min(last + 1, seq_k)))
        if seg_q is not None and seg_k is not None:
            keys = [j for j in keys if seg_q[b, i] == seg_k[b, j]]
        scores = []
        for j in keys:
            s = factor * float(q[b, h, i] @ k[b, reader, j])
            if softcap is not None:
                s = softcap - 2 * softcap / (1 + math.exp(min(2 * s / softcap, 700.0)))
            s -= 0.0 if slopes is None else float(slopes[h]) * abs(own - j)
            scores.append(s + (0.0 if bias is None else float(bias[b, h, i, j])))
            lse[b, h, i] = np.logaddexp(lse[b, h, i], scores[-1])
        for j, s in zip(keys, scores, strict=True):
            e = ((b * heads + h) * seq_q + i) * seq_k + j
            if s > -np.inf and _philox.words(1, seed, offset, start=e)[0] >= int(p * 2**32):
                o[b, h, i] += np.exp(s - lse[b, h, i]) / (1 - p) * v[b, reader, j]
    return o, lse
