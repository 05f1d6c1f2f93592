"""Multi-head latent attention [deepseek2024]: the keys and values of all heads are projections of one latent row a
token, beside which a key has a rotary part that the heads share.

q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr); c (B, Sk, R), the latents; k_rope (B, Sk, Dr); w_uk (H, R, Dn) and w_uv
(H, R, Dv); o (B, H, Sq, Dv); lse (B, H, Sq), natural logarithm. Head h has the keys [c·w_uk[h] | k_rope] and the values
c·w_uv[h], over which attention is as ever: `scale=None` is 1/√(Dn + Dr), causal is bottom-right aligned, a query that
sees nothing gives zeros and lse −inf. Rotary embeddings have been applied to q_rope and k_rope already.
"""

import math

import numpy as np
import torch


def mla(
    q_nope: np.ndarray,
    q_rope: np.ndarray,
    c: np.ndarray,
    k_rope: np.ndarray,
    w_uk: np.ndarray,
    w_uv: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(B, H, Sq, Dn), (B, H, Sq, Dr), (B, Sk, R), (B, Sk, Dr), (H, R, Dn), (H, R, Dv) -> o (B, H, Sq, Dv), lse
    (B, H, Sq)."""
    q_nope, q_rope, c, k_rope, w_uk, w_uv = (np.asarray(t, np.float64) for t in (q_nope, q_rope, c, k_rope, w_uk, w_uv))
    k, v = c[:, None] @ w_uk, c[:, None] @ w_uv
    s = q_nope @ k.swapaxes(-1, -2) + q_rope @ k_rope[:, None].swapaxes(-1, -2)
    s = s * (1 / math.sqrt(q_nope.shape[-1] + q_rope.shape[-1]) if scale is None else scale)
    queries, keys = s.shape[2:]
    if causal:
        s = np.where(np.tri(queries, keys, keys - queries, dtype=bool), s, -np.inf)
    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(m == -np.inf, 0, m))
    total = p.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):  # ln 0 is meant to be −inf
        lse = (np.where(m == -np.inf, 0, m) + np.log(total))[..., 0]
    return (p / np.where(total == 0, 1, total)) @ v, lse


def torch_mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    c: torch.Tensor,
    k_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, H, Sq, Dn), (B, H, Sq, Dr), (B, Sk, R), (B, Sk, Dr), (H, R, Dn), (H, R, Dv) -> o (B, H, Sq, Dv), lse
    (B, H, Sq)."""
    k, v = c[:, None] @ w_uk, c[:, None] @ w_uv
    s = q_nope @ k.mT + q_rope @ k_rope[:, None].mT
    s = s * ((q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5 if scale is None else scale)
    queries, keys = s.shape[2:]
    if causal:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=s.device).tril(keys - queries)
        s = s.masked_fill(~seen, -math.inf)
    p = torch.softmax(s, -1).masked_fill((s == -math.inf).all(-1, keepdim=True), 0)
    return p @ v, torch.logsumexp(s, -1)


def absorbed(
    q_nope: np.ndarray,
    q_rope: np.ndarray,
    c: np.ndarray,
    k_rope: np.ndarray,
    w_uk: np.ndarray,
    w_uv: np.ndarray,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Without keys and values of the heads: a query q·w_ukᵀ meets the latents, and o is the sum of these times w_uv.
    One query at a time."""
    q_nope, q_rope, c, k_rope, w_uk, w_uv = (np.asarray(t, np.float64) for t in (q_nope, q_rope, c, k_rope, w_uk, w_uv))
    batch, heads, queries, dim = q_nope.shape
    scale = (dim + q_rope.shape[-1]) ** -0.5 if scale is None else scale
    o, lse = np.zeros((batch, heads, queries, w_uv.shape[-1])), np.full((batch, heads, queries), -np.inf)
    for b, h, i in np.ndindex(*lse.shape):
        seen = max(0, i + c.shape[1] - queries + 1) if causal else c.shape[1]
        if seen:
            scores = scale * (c[b, :seen] @ (w_uk[h] @ q_nope[b, h, i]) + k_rope[b, :seen] @ q_rope[b, h, i])
            lse[b, h, i] = np.logaddexp.reduce(scores)
            o[b, h, i] = np.exp(scores - lse[b, h, i]) @ c[b, :seen] @ w_uv[h]
    return o, lse
