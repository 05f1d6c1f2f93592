"""Attention of a few new queries over a cache of keys and values in pages, which a table gives to sequences
[kwon2023].

q, o (B, Hq, Sq, D); k_cache, v_cache (P, page, Hkv, D); block_table (B, n) integers in [0, P); lengths (B,) integers
in [0, n·page]; lse (B, Hq, Sq), natural logarithm. Key j of sequence b is row j % page of page block_table[b, j //
page]. Sequences can share pages. Otherwise it is attention_decode: sequence b has the keys j < lengths[b], query i sees
key j where j <= i + lengths[b] − Sq, query head h reads key head h // (Hq / Hkv), and a query that sees nothing gives
zeros and lse −inf. Rows of the cache that belong to no sequence and entries of the table beyond a sequence's last page
are never used.
"""

import math

import numpy as np
import torch

from touchstone.reference.attention import attention, torch_attention


def attention_paged(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    block_table: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, Hq, Sq, D), (P, page, Hkv, D) twice, (B, n), (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    q, k_cache, v_cache = (np.asarray(t, np.float64) for t in (q, k_cache, v_cache))
    o, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, length in enumerate(np.asarray(lengths, np.int64)):
        j = np.arange(length)
        pages = np.asarray(block_table[b], np.int64)[j // k_cache.shape[1]]
        k, v = (np.moveaxis(cache[pages, j % cache.shape[1]], 0, 1)[None] for cache in (k_cache, v_cache))
        o[b : b + 1], lse[b : b + 1] = attention(q[b : b + 1], k, v, causal=True, scale=scale)
    return o, lse


def torch_attention_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, Sq, D), (P, page, Hkv, D) twice, (B, n), (B,) -> o (B, Hq, Sq, D), lse (B, Hq, Sq)."""
    o, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -math.inf)
    for b, length in enumerate(lengths.long().tolist()):
        j = torch.arange(length, device=q.device)
        pages = block_table[b].long()[j // k_cache.shape[1]]
        k, v = (cache[pages, j % cache.shape[1]].movedim(0, 1)[None] for cache in (k_cache, v_cache))
        o[b : b + 1], lse[b : b + 1] = torch_attention(q[b : b + 1], k, v, causal=True, scale=scale)
    return o, lse


def page_by_page(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    block_table: np.ndarray,
    lengths: np.ndarray,
    *,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """A page of keys after the other, each merged with those before by its lse: o = Σ exp(s − lse)·v [kwon2023]."""
    q, k_cache, v_cache = (np.asarray(t, np.float64) for t in (q, k_cache, v_cache))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    page, o, lse = k_cache.shape[1], np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for b, h, i in np.ndindex(*lse.shape):
        reader, seen = h * k_cache.shape[2] // q.shape[1], max(0, i + int(lengths[b]) - q.shape[2] + 1)
        for place in range(-(-seen // page)):
            held, rows = int(block_table[b, place]), slice(0, min(page, seen - place * page))
            scores = k_cache[held, rows, reader] @ q[b, h, i] * scale
            of_page = np.logaddexp.reduce(scores)
            if of_page == -np.inf:
                continue
            merged = np.logaddexp(lse[b, h, i], of_page)
            o[b, h, i] *= np.exp(lse[b, h, i] - merged)
            o[b, h, i] += np.exp(scores - merged) @ v_cache[held, rows, reader]
            lse[b, h, i] = merged
    return o, lse
