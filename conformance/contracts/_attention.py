"""What the contracts of attention and of its gradient share: the probabilities, which every bound is made of."""

import math
from dataclasses import dataclass

import torch

from touchstone.conformance.spec.budget import Scalar, dot_extra, finite


@dataclass(frozen=True)
class Probabilities:
    """Attention's softmax with the query heads of a key head stacked: every tensor (B, Hkv, group·Sq, Sk)."""

    scores: torch.Tensor  # scale·q·kᵀ, 0 where it is not finite
    visible: torch.Tensor  # booleans: neither hidden nor a score of -inf
    p: torch.Tensor
    size: torch.Tensor  # |scale|·|q|·|k|ᵀ
    extra: Scalar  # relative error of p under a declared precision of the scores


def stack(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(B, Hq, Sq, ...) -> (B, Hkv, group·Sq, ...): the query heads that share a key head one below the other."""
    batch, heads, seq = x.shape[:3]
    return x.reshape(batch, kv_heads, heads // max(kv_heads, 1) * seq, *x.shape[3:])


def probabilities(q, k, lse, *, causal: bool, scale: float, compute: str | None) -> Probabilities:
    """What the bounds of attention are made of; `compute` as returned by `lossy`."""
    seq_q, seq_k = q.shape[2], k.shape[2]
    group = q.shape[1] // max(k.shape[1], 1)
    rows = stack(q, k.shape[1])
    raw = scale * rows @ k.mT
    visible = raw != -math.inf
    if causal:
        visible &= torch.ones(seq_q, seq_k, dtype=torch.bool).tril(seq_k - seq_q).tile(group, 1)
    rows, k = finite(rows), finite(k)
    zero = torch.zeros((), dtype=raw.dtype)
    scores = torch.where(visible, finite(raw), zero)
    p = torch.where(visible, finite(torch.exp(scores - finite(stack(lse, k.shape[1])).unsqueeze(-1))), zero)
    size = torch.where(visible, abs(scale) * (rows.abs() @ k.abs().mT), zero)
    extra: Scalar = 0.0
    if compute is not None:
        error = dot_extra(compute, scores, scale**2 * (rows.square() @ k.square().mT))
        extra = torch.where(visible, torch.expm1(torch.as_tensor(error).clamp_max(30.0)), zero)
    return Probabilities(scores, visible, p, size, extra)


def visible_pairs(seq_q: int, seq_k: int, causal: bool) -> int:
    """How many (query, key) pairs attention looks at."""
    if not causal:
        return seq_q * seq_k
    shown = min(seq_q, seq_k)  # the last `shown` queries see something
    return shown * (seq_k - shown) + shown * (shown + 1) // 2
