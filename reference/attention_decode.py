"""Attention of a few new queries over a cache of keys and values, of which each sequence has filled a part
[dao2023decoding].

q, o (B, Hq, Sq, D); k, v (B, Hkv, Sk, D); lengths (B,) integers in [0, Sk]; lse (B, Hq, Sq), natural logarithm.
Sequence b has the keys j < lengths[b], the last Sq of which are those of its queries: query i sees key j where
j <= i + lengths[b] − Sq. That is causal attention over the first lengths[b] rows of the cache; what lies beyond them is
never used. Query head h reads key head h // (Hq / Hkv). A query that sees nothing gives zeros and lse −inf.
"""

import math

import numpy as np
import torch

from touchstone.reference.attention import attention, torch_attention


def attention_decode(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, *, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice, (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, length in enumerate(np.asarray(lengths, np.int64)):
        one = slice(b, b + 1)
        o[one], lse[one] = attention(q[one], k[one, :, :length], v[one, :, :length], causal=True, scale=scale)
    return o, lse


def torch_attention_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, *, scale: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D) twice, (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    o, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
    for b, length in enumerate(lengths.long().tolist()):
        one = slice(b, b + 1)
        o[one], lse[one] = torch_attention(q[one], k[one, :, :length], v[one, :, :length], causal=True, scale=scale)
    return o, lse


def in_splits(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, *, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A query's keys in parts of four, whose outputs are merged by their lse: o = Σ o_part·exp(lse_part − lse), a part
    without keys adding nothing [dao2023decoding]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, h, i in np.ndindex(*lse.shape):
        reader, seen = h * k.shape[1] // q.shape[1], max(0, i + int(lengths[b]) - q.shape[2] + 1)
        for start in range(0, k.shape[2], 4):
            part = slice(start, max(start, min(start + 4, seen)))
            scores = k[b, reader, part] @ q[b, h, i] * scale
            of_part = np.logaddexp.reduce(scores) if len(scores) else -np.inf
            if of_part == -np.inf:
                continue
            merged = np.logaddexp(lse[b, h, i], of_part)
            o[b, h, i] *= np.exp(lse[b, h, i] - merged)
            o[b, h, i] += np.exp(scores - merged) @ v[b, reader, part]
            lse[b, h, i] = merged
    return o, lse
