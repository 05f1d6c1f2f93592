"""Backward of attention, with the probabilities rebuilt from the given lse [dao2022flash], per batch and head:

p = exp(s − lse), s = scale·q·kᵀ, 0 where a key is hidden or lse is −inf; δ = Σ do·o over D, from the given o;
ds = p·(do·vᵀ − δ); dq = scale·ds·k; dk = scale·dsᵀ·q; dv = pᵀ·do.

Shapes and visibility as in attention; dk and dv sum over the query heads that share a key head. A row that sees
nothing gives zeros to everyone.
"""

import math

import numpy as np
import torch

from touchstone.reference.attention import _finite, _scores, _tile_scores, _tiles, _torch_scores


def attention_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv, shaped as q, k, v."""
    q, k, v, o, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, o, lse, do))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with np.errstate(invalid="ignore"):
        s = _scores(q, k, causal, scale)
        stacked = (*s.shape[:-1], q.shape[-1])  # (B, Hkv, group·Sq, D)
        p = np.exp(s - np.where(lse == -np.inf, np.inf, lse).reshape(*s.shape[:-1], 1))
        delta = (do * o).sum(axis=-1).reshape(*s.shape[:-1], 1)
        ds = p * (do.reshape(stacked) @ v.swapaxes(-1, -2) - delta)
        dq = scale * ds @ k
        dk = scale * ds.swapaxes(-1, -2) @ q.reshape(stacked)
        dv = p.swapaxes(-1, -2) @ do.reshape(stacked)
    return dq.reshape(q.shape), dk, dv


def torch_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, o, do (B, Hq, Sq, D), k, v (B, Hkv, Sk, D), lse (B, Hq, Sq) -> dq, dk, dv, shaped as q, k, v."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = _torch_scores(q, k, causal, scale)
    stacked = (*s.shape[:-1], q.shape[-1])
    lse = lse.to(s.dtype).masked_fill(lse == -math.inf, math.inf)
    p = torch.exp(s - lse.reshape(*s.shape[:-1], 1))
    delta = (do * o).sum(-1).reshape(*s.shape[:-1], 1)
    ds = p * (do.reshape(stacked) @ v.mT - delta)
    return (scale * ds @ k).reshape(q.shape), scale * ds.mT @ q.reshape(stacked), p.mT @ do.reshape(stacked)


def explicit(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One query at a time over the keys it sees, with δ = Σ p·dp over them in place of Σ do·o [dao2022flash]."""
    q, k, v, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, lse, do))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for b, h, i in np.ndindex(*q.shape[:3]):
        reader = h * k.shape[1] // q.shape[1]
        seen = max(i + k.shape[2] - q.shape[2] + 1, 0) if causal else k.shape[2]
        if lse[b, h, i] == -np.inf:
            continue
        p = np.exp(scale * k[b, reader, :seen] @ q[b, h, i] - lse[b, h, i])
        dp = v[b, reader, :seen] @ do[b, h, i]
        ds = p * dp - p * (p @ dp)
        dq[b, h, i] = scale * ds @ k[b, reader, :seen]
        dk[b, reader, :seen] += scale * np.multiply.outer(ds, q[b, h, i])
        dv[b, reader, :seen] += np.multiply.outer(p, do[b, h, i])
    return dq, dk, dv


def tiled(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    o: np.ndarray,
    lse: np.ndarray,
    do: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys outside, queries inside, p rebuilt per tile: dk and dv complete with their tile, dq grows [dao2022flash]."""
    q, k, v, o, lse, do = (np.asarray(t, np.float64) for t in (q, k, v, o, lse, do))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // max(k.shape[1], 1)
    delta = np.einsum("bhid,bhid->bhi", do, o)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for keys in _tiles(k.shape[2], 4):
        for queries in _tiles(q.shape[2], 3):
            s = _tile_scores(q, k, queries, keys, causal, scale)
            lse_tile = lse[:, :, queries, None]
            p = np.where(lse_tile == -np.inf, 0, np.exp(s - _finite(lse_tile)))
            dp = np.einsum("bhid,bhjd->bhij", do[:, :, queries], np.repeat(v[:, :, keys], group, axis=1))
            ds = scale * p * (dp - delta[:, :, queries, None])
            dq[:, :, queries] += np.einsum("bhij,bhjd->bhid", ds, np.repeat(k[:, :, keys], group, axis=1))
            for h in range(q.shape[1]):
                dk[:, h // group, keys] += np.einsum("bij,bid->bjd", ds[:, h], q[:, h, queries])
                dv[:, h // group, keys] += np.einsum("bij,bid->bjd", p[:, h], do[:, h, queries])
    return dq, dk, dv
