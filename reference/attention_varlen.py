"""Attention over sequences of various lengths that lie one after another, without padding [dao2022flash].

q, o (Tq, Hq, D); k, v (Tk, Hkv, D); cu_q, cu_k (B + 1,) integers that ascend from 0, sequence b of q being the rows
cu_q[b] to cu_q[b + 1] − 1; lse (Hq, Tq), natural logarithm. Each sequence is attention by itself: causal is aligned
bottom-right within it, and either of its lengths may be 0. Rows from cu[B] on belong to no sequence: of q's the output
is 0 and lse −inf, of k and v they are never used. max_q and max_k, at least the longest lengths, say how much work to
lay out; the answer does not depend on them.
"""

import math

import numpy as np
import torch

from touchstone.reference._packing import sequences
from touchstone.reference.attention import attention, torch_attention


def attention_varlen(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_q: np.ndarray,
    cu_k: np.ndarray,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(Tq, Hq, D), (Tk, Hkv, D) twice, (B + 1,) twice -> o (Tq, Hq, D), lse (Hq, Tq)."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    o, lse = np.zeros(q.shape), np.full(q.shape[1::-1], -np.inf)
    for rows, keys in sequences(cu_q, cu_k):
        own = (t.swapaxes(0, 1)[None] for t in (q[rows], k[keys], v[keys]))
        of_one = attention(*own, causal=causal, scale=scale)
        o[rows], lse[:, rows] = of_one[0][0].swapaxes(0, 1), of_one[1][0]
    return o, lse


def torch_attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(Tq, Hq, D), (Tk, Hkv, D) twice, (B + 1,) twice -> o (Tq, Hq, D), lse (Hq, Tq)."""
    o, lse = torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), -math.inf)
    for rows, keys in sequences(cu_q, cu_k):
        own = (t.transpose(0, 1)[None] for t in (q[rows], k[keys], v[keys]))
        of_one = torch_attention(*own, causal=causal, scale=scale)
        o[rows], lse[:, rows] = of_one[0][0].transpose(0, 1), of_one[1][0]
    return o, lse


def by_one_mask(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_q: np.ndarray,
    cu_k: np.ndarray,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One softmax over all keys, of which a query sees those of its own sequence's number, and, if causal, those that
    are no nearer to their sequence's end than itself [vaswani2017]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    number_q, left_q = _places(cu_q, len(q))
    number_k, left_k = _places(cu_k, len(k))
    seen = (number_q[:, None] == number_k) & (number_q[:, None] >= 0)
    if causal:
        seen &= left_k >= left_q[:, None]
    reader = np.arange(q.shape[1]) * k.shape[1] // q.shape[1]
    s = np.einsum("ihd,jhd->hij", q, k[:, reader]) * (1 / math.sqrt(q.shape[2]) if scale is None else scale)
    s = np.where(seen, s, -np.inf)
    lse = np.logaddexp.reduce(s, axis=-1)
    p = np.exp(s - np.where(lse == -np.inf, 0, lse)[..., None])
    return np.einsum("hij,jhd->ihd", p, v[:, reader]), lse


def _places(cu: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's sequence, −1 for none, and how many rows of it follow."""
    rows = np.arange(total)
    number = np.searchsorted(np.asarray(cu, np.int64), rows, side="right") - 1
    number[number == len(cu) - 1] = -1
    return number, np.append(np.asarray(cu, np.int64)[1:], 0)[number] - 1 - rows
