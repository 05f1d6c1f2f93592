"""Attention of a few new queries over a cache of keys and values of four bits each, of which each sequence has filled a
part [pumma2024].

q, o (B, Hq, Sq, D); k_codes, v_codes (B, Hkv, Sk, D/2), bytes whose low nibble is the code, 0 to 15, of an even column
and whose high nibble is that of the next; k_scales, v_scales (B, Hkv, Sk, G, 2), a factor and a shift for each group of
D/G columns of a row: an element is code·factor + shift. lengths (B,) integers in [0, Sk]; lse (B, Hq, Sq), natural
logarithm. Otherwise as attention_decode: query i of sequence b sees key j where j <= i + lengths[b] − Sq, what lies
beyond a length is never used, and a query that sees nothing gives zeros and lse −inf.
"""

import numpy as np
import torch

from touchstone.reference._nibbles import elements, nibbles, torch_elements
from touchstone.reference.attention_decode import attention_decode, torch_attention_decode


def attention_decode_int4(
    q: np.ndarray,
    k_codes: np.ndarray,
    k_scales: np.ndarray,
    v_codes: np.ndarray,
    v_scales: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D/2) and (B, Hkv, Sk, G, 2) twice, (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    k, v = elements(k_codes, k_scales), elements(v_codes, v_scales)
    return attention_decode(q, k, v, lengths, scale=scale)


def torch_attention_decode_int4(
    q: torch.Tensor,
    k_codes: torch.Tensor,
    k_scales: torch.Tensor,
    v_codes: torch.Tensor,
    v_scales: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (B, Hkv, Sk, D/2) and (B, Hkv, Sk, G, 2) twice, (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    k, v = torch_elements(k_codes, k_scales), torch_elements(v_codes, v_scales)
    return torch_attention_decode(q, k, v, lengths, scale=scale)


def factors_outside(
    q: np.ndarray,
    k_codes: np.ndarray,
    k_scales: np.ndarray,
    v_codes: np.ndarray,
    v_scales: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Products with the codes alone: a group's part of a score is factor·Σ q·code + shift·Σ q, and of o
    Σ (p·factor)·code + Σ p·shift."""
    q = np.asarray(q, np.float64)
    k_scales, v_scales = np.asarray(k_scales, np.float64), np.asarray(v_scales, np.float64)
    batch, heads, queries, dim = q.shape
    scale = dim**-0.5 if scale is None else scale
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    group = np.arange(dim) // (dim // k_scales.shape[3]) if dim else np.arange(0)
    for b, h, i in np.ndindex(batch, heads, queries):
        reader, seen = h * k_codes.shape[1] // heads, max(0, i + int(lengths[b]) - queries + 1)
        if not seen:
            continue
        k, v = (nibbles(codes[b, reader, :seen]) for codes in (k_codes, v_codes))
        of_k, of_v = k_scales[b, reader, :seen], v_scales[b, reader, :seen]
        scores = np.zeros(seen)
        for g in range(of_k.shape[1]):
            own = q[b, h, i, group == g]
            scores += of_k[:, g, 0] * (k[:, group == g] @ own) + of_k[:, g, 1] * own.sum()
        lse[b, h, i] = np.logaddexp.reduce(scores * scale)
        p = np.exp(scores * scale - lse[b, h, i])
        o[b, h, i] = [(p * of_v[:, g, 0]) @ v[:, d] + p @ of_v[:, g, 1] for d, g in enumerate(group)]
    return o, lse
