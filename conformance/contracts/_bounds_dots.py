"""Pieces of error bounds that several contracts share: chained dot products, activations, attention.

All tensors are float64. A "condition" multiplies the float32 accumulation error of a budget, a "rounding" the error of
storing an intermediate in the input dtype (conformance/spec/budget.py).
"""

import math
from dataclasses import dataclass

import torch

from touchstone.conformance.spec.budget import COMPUTE, EPS, EPS32, C, Scalar, T, dot_extra, finite
from touchstone.reference._activations import torch_act_grad

LIPSCHITZ = {"gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "relu": 1.0}  # largest |act'|, rounded up
CURVATURE = {"gelu": 0.8, "gelu_tanh": 0.83, "silu": 0.5, "relu": 0.0}  # largest |act''|; relu jumps at 0


def combine(error: torch.Tensor, weight: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
    """Error of `value @ weight` when each element of `value` is off by up to `error`, independently.

    (..., I, J), (..., J, N) -> (..., I, N): the worst case, or four standard deviations of the random sum. Values that
    repeat (`repeats`) are off by the same amount: give `value`, and that part is added with its sign.
    """
    random = 4 * (error.square() @ weight.square()).sqrt()
    if value is not None:
        random = random + ((error * value.sign()) @ weight).abs()
    return torch.minimum(error @ weight.abs(), random)


def gathered(error: torch.Tensor, axis: int, value: torch.Tensor | None = None) -> torch.Tensor:
    """`combine` for a plain sum along `axis`."""
    random = 4 * error.square().sum(axis).sqrt()
    if value is not None:
        random = random + (error * value.sign()).sum(axis).abs()
    return torch.minimum(error.sum(axis), random)


def repeats(axis: int, *operands: torch.Tensor) -> bool:
    """Whether one of `operands` is the same slice over and over along `axis`, as a broadcast one is."""
    return any(t.shape[axis] > 1 and bool((t == t.narrow(axis, 0, 1)).all()) for t in operands)


def lossy(compute: str | None, dtype: torch.dtype) -> str | None:
    """`compute`, or None where operands of `dtype` are not changed by being rounded to it."""
    return None if compute is None or EPS[dtype] >= COMPUTE[compute] else compute


def kept(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rounding, in units of eps, of `value` when it is stored in `dtype`: its size, or that of a subnormal."""
    return value.abs().clamp_min(torch.finfo(dtype).tiny)


def slope(z: torch.Tensor, radius: torch.Tensor, activation: str) -> torch.Tensor:
    """The largest |act'| within `radius` of `z`."""
    if activation == "relu":
        return (z + radius > 0).to(z.dtype)
    steepest = torch_act_grad(z, activation).abs() + CURVATURE[activation] * radius
    return steepest.clamp_max(LIPSCHITZ[activation])


def accumulated(terms: int, condition: torch.Tensor) -> torch.Tensor:
    """The absolute error of a float32 sum of `terms` terms."""
    return C * EPS32 * math.sqrt(terms + 8) * condition


@dataclass(frozen=True)
class Projection:
    """z = x·w + b, an intermediate of an MLP, and how far from it a correct kernel's z can be."""

    product: torch.Tensor  # x·w
    z: torch.Tensor
    condition: torch.Tensor  # |x|·|w| + |b|
    rounding: torch.Tensor  # |x·w| + |z| where there is a bias, else |z|: stored before and after adding it
    extra: Scalar  # of a declared precision
    radius: torch.Tensor  # all of these as one absolute error


def projection(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, dtype: torch.dtype, compute: str | None
) -> Projection:
    """x (M, D), w (D, H), b (H,) or None; `compute` as returned by `lossy`."""
    product, condition = x @ w, x.abs() @ w.abs()
    extra = dot_extra(compute, product, x.square() @ w.square())
    z, rounding = product, kept(product, dtype)
    if b is not None:
        z, condition, rounding = product + b, condition + b.abs(), rounding + kept(product + b, dtype)
    radius = accumulated(x.shape[-1], condition) + T * EPS[dtype] * rounding + extra
    return Projection(product, z, condition, rounding, extra, radius)


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
