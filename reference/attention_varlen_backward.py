"""Backward of attention over sequences that lie one after another [dao2022flash].

q, o, do (Tq, Hq, D); k, v (Tk, Hkv, D); lse (Hq, Tq); cu_q, cu_k (B + 1,): as in attention_varlen, with o and lse as it
returns them. Each sequence is attention_backward by itself. Rows that belong to no sequence, and keys that nobody sees,
have gradients of 0.
"""

import math

import numpy as np
import torch

from touchstone.reference._packing import sequences
from touchstone.reference.attention_backward import attention_backward, torch_attention_backward


def attention_varlen_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    cu_q: np.ndarray,
    cu_k: np.ndarray,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, o, do (Tq, Hq, D), k, v (Tk, Hkv, D), lse (Hq, Tq) -> dq, dk, dv, shaped as q, k, v."""
    q, k, v, o, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, o, lse, do))
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for rows, keys in sequences(cu_q, cu_k):
        own = [t.swapaxes(0, 1)[None] for t in (q[rows], k[keys], v[keys], o[rows], lse[:, rows].T, do[rows])]
        found = attention_backward(*own, causal=causal, scale=scale)
        dq[rows], dk[keys], dv[keys] = (gradient[0].swapaxes(0, 1) for gradient in found)
    return dq, dk, dv


def torch_attention_varlen_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (Tq, Hq, D), k, v (Tk, Hkv, D), lse (Hq, Tq) -> dq, dk, dv, shaped as q, k, v."""
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    for rows, keys in sequences(cu_q, cu_k):
        own = [t.transpose(0, 1)[None] for t in (q[rows], k[keys], v[keys], o[rows], lse[:, rows].T, do[rows])]
        found = torch_attention_backward(*own, causal=causal, scale=scale)
        dq[rows], dk[keys], dv[keys] = (gradient[0].transpose(0, 1) for gradient in found)
    return dq, dk, dv


def one_pair_at_a_time(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    cu_q: np.ndarray,
    cu_k: np.ndarray,
    *,
    max_q: int,
    max_k: int,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each query walks over the keys that it sees in memory, with δ = Σ p·dp in place of Σ do·o [dao2022flash]."""
    q, k, v, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, lse, do))
    cu_q, cu_k = np.asarray(cu_q, np.int64), np.asarray(cu_k, np.int64)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for row, h in np.ndindex(*q.shape[:2]):
        b, reader = int((cu_q[1:] <= row).sum()), h * k.shape[1] // q.shape[1]
        if b == len(cu_q) - 1 or lse[h, row] == -np.inf:
            continue
        after = cu_k[b + 1] - (cu_q[b + 1] - 1 - row if causal else 0)
        keys = slice(cu_k[b], max(cu_k[b], after))
        p = np.exp(scale * k[keys, reader] @ q[row, h] - lse[h, row])
        dp = v[keys, reader] @ do[row, h]
        ds = scale * p * (dp - p @ dp)
        dq[row, h] = ds @ k[keys, reader]
        dk[keys, reader] += np.multiply.outer(ds, q[row, h])
        dv[keys, reader] += np.multiply.outer(p, do[row, h])
    return dq, dk, dv
