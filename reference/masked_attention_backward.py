"""Backward of masked attention, with the probabilities rebuilt from the given lse [dao2022flash], per batch and head:

p = exp(s − lse) with the scores s of the forward, 0 where a key is hidden or lse is −inf; w what dropout multiplies p
by, 0 or 1/(1 − p); δ = Σ do·o over D, from the given o; ds = p·(w·do·vᵀ − δ), with `softcap` c times the slope
1 − tanh² of the scores; dq = scale·ds·k; dk = scale·dsᵀ·q; dv = (p·w)ᵀ·do. δ is Σ p·w·dp over the keys, because o is
what dropout left. bias and slopes have no gradient here.

Shapes, visibility and errors as in masked_attention; dk and dv sum over the query heads that share a key head. A query
that sees nothing gives zeros to everyone.
"""

import math

import numpy as np
import torch

from touchstone.reference import _masks, _philox
from touchstone.reference.masked_attention import _both_or_neither


def masked_attention_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv, shaped as q, k, v."""
    _masks.check(window, softcap)
    _both_or_neither(seg_q, seg_k)
    q, k, v, o, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, o, lse, do))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    wide_k, wide_v = (np.repeat(t, group, axis=1) for t in (k, v))
    seen = _masks.within(q.shape[2], k.shape[2], causal=causal, window=window)
    if seg_q is not None and seg_k is not None:
        seen = seen & (np.asarray(seg_q)[:, None, :, None] == np.asarray(seg_k)[:, None, None, :])
    dots = factor * q @ wide_k.swapaxes(-1, -2)
    s = dots if softcap is None else softcap * np.tanh(dots / softcap)
    if slopes is not None:
        s = s - np.asarray(slopes, np.float64)[:, None, None] * abs(_masks.apart(*s.shape[2:]))
    s = np.where(seen, s if bias is None else s + np.asarray(bias, np.float64), -np.inf)
    share = np.exp(s - np.where(lse == -np.inf, np.inf, lse)[..., None])
    weights = _philox.kept(s.shape, p, seed, offset) * _philox.scale(p)
    ds = share * (weights * (do @ wide_v.swapaxes(-1, -2)) - (do * o).sum(axis=-1, keepdims=True))
    if softcap is not None:
        ds = ds * (1 - np.tanh(dots / softcap) ** 2)
    dk, dv = factor * ds.swapaxes(-1, -2) @ q, (share * weights).swapaxes(-1, -2) @ do
    shared = (*k.shape[:2], group, *k.shape[2:])
    return factor * ds @ wide_k, dk.reshape(shared).sum(axis=2), dv.reshape(shared).sum(axis=2)


def torch_masked_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv, shaped as q, k, v."""
    _masks.check(window, softcap)
    _both_or_neither(seg_q, seg_k)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    wide_k, wide_v = (t.repeat_interleave(group, 1) for t in (k, v))
    dots = factor * q @ wide_k.mT
    seen = _masks.visible(q.shape[2], k.shape[2], seg_q, seg_k, causal=causal, window=window).to(dots.device)
    s = _masks.changed(dots, bias, slopes, softcap=softcap).masked_fill(~seen, -math.inf)
    probabilities = torch.exp(s - lse.to(s.dtype).masked_fill(lse == -math.inf, math.inf)[..., None])
    weights = _masks.weights(s.shape, p=p, seed=seed, offset=offset, device=s.device).to(s)
    delta = (do * o).sum(-1, keepdim=True)
    ds = probabilities * (weights * (do @ wide_v.mT) - delta)
    if softcap is not None:
        ds = ds * (1 - torch.tanh(dots / softcap).square())
    dk, dv = factor * ds.mT @ q, (probabilities * weights).mT @ do
    shared = (*k.shape[:2], group, *k.shape[2:])
    return factor * ds @ wide_k, dk.reshape(shared).sum(2), dv.reshape(shared).sum(2)


def key_by_key(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One query at a time over the keys that it sees, δ as the sum over those keys, and the slope of the soft-cap as
    1/cosh² [dao2022flash]."""
    q, k, v, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, lse, do))
    (batch, heads, seq_q, dim), seq_k = q.shape, k.shape[2]
    factor = 1 / math.sqrt(dim) if scale is None else scale
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, h, i in np.ndindex(batch, heads, seq_q):
        reader, own = h * k.shape[1] // heads, i + seq_k - seq_q
        first = 0 if window is None else max(own - window + 1, 0)
        last = own if causal else seq_k if window is None else own + window - 1
        seen = np.arange(first, max(first, min(last + 1, seq_k)))
        if seg_q is not None:
            seen = seen[np.asarray(seg_k)[b, seen] == np.asarray(seg_q)[b, i]]
        if lse[b, h, i] == -np.inf or not len(seen):
            continue
        raw = factor * (k[b, reader, seen] @ q[b, h, i])
        s = raw if softcap is None else softcap * np.tanh(raw / softcap)
        s = s - (0.0 if slopes is None else slopes[h] * np.abs(own - seen))
        s = s + (0.0 if bias is None else np.asarray(bias, np.float64)[b, h, i, seen])
        start = ((b * heads + h) * seq_q + i) * seq_k
        kept = _philox.words(seq_k, seed, offset, start=start)[seen] >= int(p * 2**32)
        share = np.exp(s - lse[b, h, i])
        z = share * kept * _philox.scale(p)
        dp = v[b, reader, seen] @ do[b, h, i]
        ds = z * dp - share * (z @ dp)
        ds = ds if softcap is None else ds / np.cosh(raw / softcap) ** 2
        dq[b, h, i] = factor * ds @ k[b, reader, seen]
        dk[b, reader, seen] += factor * np.multiply.outer(ds, q[b, h, i])
        dv[b, reader, seen] += np.multiply.outer(z, do[b, h, i])
    return dq, dk, dv
