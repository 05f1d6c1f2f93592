"""Attention of a few new queries over a cache of latents, which are keys and values at once, and which all heads share
[deepseek2024].

q (B, H, Sq, W); cache (B, Sk, W); lengths (B,) integers in [0, Sk]; o (B, H, Sq, dim_v); lse (B, H, Sq), natural
logarithm. A row of the cache is a key, and its first dim_v columns are the value; its other columns, which carry the
rotary embedding, are in the scores alone. Sequence b has the rows j < lengths[b], and query i sees those where
j <= i + lengths[b] − Sq; what lies beyond is never used. `scale` has no default: it is that of the heads before their
projections were absorbed, and does not follow from W. A query that sees nothing gives zeros and lse −inf.
"""

import numpy as np
import torch

from touchstone.reference.attention_decode import attention_decode, torch_attention_decode


def mla_decode(
    q: np.ndarray, cache: np.ndarray, lengths: np.ndarray, *, dim_v: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """(B, H, Sq, W), (B, Sk, W), (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq)."""
    rows = np.asarray(cache, np.float64)[:, None]
    o, lse = attention_decode(q, rows, rows, lengths, scale=scale)
    return o[..., :dim_v], lse


def torch_mla_decode(
    q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, *, dim_v: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, H, Sq, W), (B, Sk, W), (B,) -> o (B, H, Sq, dim_v), lse (B, H, Sq)."""
    o, lse = torch_attention_decode(q, cache[:, None], cache[:, None], lengths, scale=scale)
    return o[..., :dim_v], lse


def in_two_parts(
    q: np.ndarray, cache: np.ndarray, lengths: np.ndarray, *, dim_v: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """The scores as a sum over the latent and over the rotary columns; the heads and queries of a sequence as the rows
    of one matrix, each with as many keys as it sees [deepseek2025]."""
    q, cache = np.asarray(q, np.float64), np.asarray(cache, np.float64)
    batch, heads, queries, _ = q.shape
    o, lse = np.zeros((batch, heads * queries, dim_v)), np.full((batch, heads * queries), -np.inf)
    for b in range(batch):
        rows, latent, rotary = q[b].reshape(heads * queries, -1), cache[b, :, :dim_v], cache[b, :, dim_v:]
        for row in range(heads * queries):
            seen = max(0, row % queries + int(lengths[b]) - queries + 1)
            if seen:
                scores = scale * (latent[:seen] @ rows[row, :dim_v] + rotary[:seen] @ rows[row, dim_v:])
                lse[b, row] = np.logaddexp.reduce(scores)
                o[b, row] = np.exp(scores - lse[b, row]) @ latent[:seen]
    return o.reshape(batch, heads, queries, dim_v), lse.reshape(batch, heads, queries)
