"""Scaled dot-product attention [vaswani2017]: o = softmax(s)·v, lse = ln Σ exp(s), s = scale·q·kᵀ, per batch and head.

q, o (B, Hq, Sq, D); k, v (B, Hkv, Sk, D); lse (B, Hq, Sq), natural logarithm. Hq is a multiple of Hkv and query head h
reads key head h // (Hq / Hkv). `scale=None` is 1/√D. Causal is bottom-right aligned: query i sees key j where
j <= i + Sk − Sq (the other convention is top-left; they agree for Sq = Sk). A hidden key contributes nothing.
A row that sees nothing, or only scores of −inf, gives zeros and lse −inf.
"""

import math

import numpy as np
import torch


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    with np.errstate(invalid="ignore", divide="ignore"):  # inf − inf is meant to be NaN, ln 0 to be −inf
        s = _scores(q, k, causal, scale)
        m = s.max(axis=-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(m == -np.inf, 0, m))
        total = p.sum(axis=-1, keepdims=True)
        o = (p / np.where(total == 0, 1, total)) @ v
        lse = np.where(np.isinf(m), m, m + np.log(total))
    return o.reshape(q.shape), lse.reshape(q.shape[:-1])


def torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice -> o (B, Hq, Sq, D), lse (B, Hq, Sq). Holds all scores at once."""
    s = _torch_scores(q, k, causal, scale)
    empty = (s == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(s, -1).masked_fill(empty, 0)
    return (p @ v).reshape(q.shape), torch.logsumexp(s, -1).reshape(q.shape[:-1])


def _scores(q: np.ndarray, k: np.ndarray, causal: bool, scale: float | None) -> np.ndarray:
    """(B, Hkv, group·Sq, Sk): the query heads that share a key head lie one below the other; −inf where hidden."""
    (batch, heads_q, seq_q, dim), (heads_kv, seq_k) = q.shape, k.shape[1:3]
    group = heads_q // max(heads_kv, 1)
    stacked = q.reshape(batch, heads_kv, group * seq_q, dim)
    s = stacked @ k.swapaxes(-1, -2) * (1 / math.sqrt(dim) if scale is None else scale)
    if causal:
        s[..., ~np.tile(np.tri(seq_q, seq_k, seq_k - seq_q, dtype=bool), (group, 1))] = -np.inf
    return s


def _torch_scores(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float | None) -> torch.Tensor:
    (batch, heads_q, seq_q, dim), (heads_kv, seq_k) = q.shape, k.shape[1:3]
    group = heads_q // max(heads_kv, 1)
    stacked = q.reshape(batch, heads_kv, group * seq_q, dim)
    s = stacked @ k.mT * (1 / math.sqrt(dim) if scale is None else scale)
    if causal:
        visible = torch.ones(seq_q, seq_k, dtype=torch.bool, device=q.device).tril(seq_k - seq_q)
        s = s.masked_fill(~visible.tile(group, 1), -math.inf)
    return s


def explicit(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """One query at a time over the keys it sees, which are a prefix of the sequence: no mask at all [vaswani2017]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, h, i in np.ndindex(*lse.shape):
        reader = h * k.shape[1] // q.shape[1]
        seen = max(i + k.shape[2] - q.shape[2] + 1, 0) if causal else k.shape[2]
        scores = k[b, reader, :seen] @ q[b, h, i] * scale
        lse[b, h, i] = np.logaddexp.reduce(scores)
        if lse[b, h, i] > -np.inf:
            o[b, h, i] = np.exp(scores - lse[b, h, i]) @ v[b, reader, :seen]
    return o, lse


def flash1(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """FlashAttention's Algorithm 1: keys outside, queries inside, o normalised after every tile [dao2022flash]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    o, total, m = np.zeros(q.shape), np.zeros(q.shape[:-1]), np.full(q.shape[:-1], -np.inf)
    for keys in _tiles(k.shape[2], 4):
        for queries in _tiles(q.shape[2], 3):
            s = _tile_scores(q, k, queries, keys, causal, scale)
            v_tile = np.repeat(v[:, :, keys], q.shape[1] // v.shape[1], axis=1)
            o_old, l_old, m_old = o[:, :, queries], total[:, :, queries], m[:, :, queries]
            m_tile = s.max(axis=-1)
            p = np.exp(s - _finite(m_tile)[..., None])
            m_new = np.maximum(m_old, m_tile)
            kept, added = np.exp(m_old - _finite(m_new)), np.exp(m_tile - _finite(m_new))
            l_new = kept * l_old + added * p.sum(axis=-1)
            unnormalised = (l_old * kept)[..., None] * o_old + added[..., None] * (p @ v_tile)
            o[:, :, queries] = unnormalised / np.where(l_new == 0, 1, l_new)[..., None]
            total[:, :, queries], m[:, :, queries] = l_new, m_new
    with np.errstate(divide="ignore"):
        return o, m + np.log(total)


def flash2(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Queries outside, keys inside, o normalised once at the end, and no tile beyond the diagonal [dao2023flash2]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for queries in _tiles(q.shape[2], 3):
        acc, m = np.zeros(q[:, :, queries].shape), np.full(lse[:, :, queries].shape, -np.inf)
        total = np.zeros(m.shape)
        end = min(max(queries.stop + k.shape[2] - q.shape[2], 0), k.shape[2]) if causal else k.shape[2]
        for keys in _tiles(end, 4):
            s = _tile_scores(q, k, queries, keys, causal, scale)
            m_new = np.maximum(m, s.max(axis=-1))
            p, kept = np.exp(s - _finite(m_new)[..., None]), np.exp(m - _finite(m_new))
            total = kept * total + p.sum(axis=-1)
            acc = kept[..., None] * acc + p @ np.repeat(v[:, :, keys], q.shape[1] // v.shape[1], axis=1)
            m = m_new
        o[:, :, queries] = acc / np.where(total == 0, 1, total)[..., None]
        with np.errstate(divide="ignore"):
            lse[:, :, queries] = m + np.log(total)
    return o, lse


def split_keys(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool = False, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Attention over each part of the keys, merged by lse: o = Σ o_part·exp(lse_part − lse) [dao2023decoding]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for keys in _tiles(k.shape[2], 4):
        s = _tile_scores(q, k, slice(0, q.shape[2]), keys, causal, scale)
        lse_part = np.logaddexp.reduce(s, axis=-1)
        p = np.exp(s - _finite(lse_part)[..., None])
        merged = np.logaddexp(lse, lse_part)
        kept, added = np.exp(lse - _finite(merged)), np.exp(lse_part - _finite(merged))
        o_part = p @ np.repeat(v[:, :, keys], q.shape[1] // v.shape[1], axis=1)
        o, lse = kept[..., None] * o + added[..., None] * o_part, merged
    return o, lse


def _tiles(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _tile_scores(
    q: np.ndarray, k: np.ndarray, queries: slice, keys: slice, causal: bool, scale: float | None
) -> np.ndarray:
    """(B, Hq, queries, keys) scores of one tile, −inf where hidden."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    k_tile = np.repeat(k[:, :, keys], q.shape[1] // k.shape[1], axis=1)
    s = scale * np.einsum("bhid,bhjd->bhij", q[:, :, queries], k_tile)
    i, j = np.arange(q.shape[2])[queries, None], np.arange(k.shape[2])[None, keys]
    return np.where(j > i + k.shape[2] - q.shape[2], -np.inf, s) if causal else s


def _finite(m: np.ndarray) -> np.ndarray:
    """0 in place of −inf: a maximum or lse that can be subtracted though nothing has been seen yet."""
    return np.where(m == -np.inf, 0, m)
