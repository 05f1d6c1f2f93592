"""What the contracts of attention and of its gradient share: the probabilities, and the bounds made of them."""

import math
from dataclasses import dataclass

import torch

from touchstone.conformance.contracts._bounds_dots import combine, gathered, most, multiplied, summed
from touchstone.conformance.spec.budget import EPS, EPS32, Expected, Scalar, dot_extra, finite


@dataclass(frozen=True)
class Mods:
    """What lies between scale·q·kᵀ and the probabilities, and between those and v: tensors (B, Hq, Sq, Sk)."""

    scores: torch.Tensor
    visible: torch.Tensor
    more: Scalar  # sum of the absolute values of what the scores have besides scale·q·kᵀ
    slope: Scalar  # of the scores in scale·q·kᵀ
    softcap: float | None
    kept: Scalar  # what dropout multiplies the probabilities by


@dataclass(frozen=True)
class Probabilities:
    """Attention's softmax with the query heads of a key head stacked: every tensor (B, Hkv, group·Sq, Sk)."""

    scores: torch.Tensor  # 0 where they are not finite
    visible: torch.Tensor  # booleans: neither hidden nor a score of -inf
    p: torch.Tensor
    size: torch.Tensor  # sum of the absolute values behind a score
    extra: Scalar  # relative error of p under a declared precision of the scores
    slope: Scalar = 1.0  # of the scores in scale·q·kᵀ
    bend: Scalar = 0.0  # error of that slope, in units of eps
    kept: Scalar = 1.0  # what p is multiplied by before v


def stack(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(B, Hq, Sq, ...) -> (B, Hkv, group·Sq, ...): the query heads that share a key head one below the other."""
    batch, heads, seq = x.shape[:3]
    return x.reshape(batch, kv_heads, heads // max(kv_heads, 1) * seq, *x.shape[3:])


def probabilities(
    q, k, lse, *, scale: float, compute: str | None, causal: bool = False, mods: Mods | None = None
) -> Probabilities:
    """What the bounds of attention are made of; `compute` as returned by `lossy`. `mods` say what is visible where
    causality alone does not."""
    seq_q, seq_k, kv_heads = q.shape[2], k.shape[2], k.shape[1]
    rows = stack(q, kv_heads)
    raw = scale * rows @ k.mT
    s = raw
    more: Scalar = 0.0
    slope: Scalar = 1.0
    kept: Scalar = 1.0
    if mods is not None:
        s = stack(mods.scores, kv_heads)
        visible = stack(mods.visible, kv_heads) & (s != -math.inf)
        more, slope, kept = (
            stack(part, kv_heads) if isinstance(part, torch.Tensor) else part
            for part in (mods.more, mods.slope, mods.kept)
        )
    else:
        visible = raw != -math.inf
        if causal:
            group = q.shape[1] // max(kv_heads, 1)
            visible &= torch.ones(seq_q, seq_k, dtype=torch.bool).tril(seq_k - seq_q).tile(group, 1)
    rows, k = finite(rows), finite(k)
    zero = torch.zeros((), dtype=raw.dtype)
    scores = torch.where(visible, finite(s), zero)
    p = torch.where(visible, finite(torch.exp(scores - finite(stack(lse, kv_heads)).unsqueeze(-1))), zero)
    size = torch.where(visible, slope * abs(scale) * (rows.abs() @ k.abs().mT) + more, zero)
    bend: Scalar = 0.0 if mods is None or mods.softcap is None else 4 + 2 * size / mods.softcap
    extra: Scalar = 0.0
    if compute is not None:
        error = dot_extra(compute, torch.where(visible, finite(raw), zero), scale**2 * (rows.square() @ k.square().mT))
        extra = torch.where(visible, torch.expm1(torch.as_tensor(slope * error).clamp_max(30.0)), zero)
    return Probabilities(scores, visible, p, size, extra, slope, bend, kept)


def forward_bounds(v, o, lse, at: Probabilities, *, dtype, compute: str | None) -> dict[str, Expected]:
    """Of o (B, Hq, Sq, D) and lse."""
    p, size = at.p, at.size
    if v.shape[2] == 0:
        return {"o": Expected(o, drift=0.2), "lse": Expected(lse, dtype=torch.float32)}
    stacked = torch.nan_to_num(stack(o, v.shape[1]), nan=0.0)
    largest = at.scores.abs().amax(-1, keepdim=True)
    shown = at.kept * p
    of_l = v.shape[-1] + summed(p, -1)
    terms = torch.maximum(v.shape[-1] + multiplied(shown, v), of_l.unsqueeze(-1)).reshape(o.shape)
    through = p * (1 + size + largest).clamp_max(most(v.shape[-1] + v.shape[2]))
    condition = (at.kept * through) @ v.abs() + stacked.abs() * through.sum(-1, keepdim=True)
    stored = torch.where(at.visible, p.clamp_min(torch.finfo(dtype).tiny), 0.0)
    rounding = combine(at.kept * stored, v)
    if not isinstance(at.kept, torch.Tensor):
        rounding = torch.where(_powers_of_two(p), 0.0, rounding)
    wrong = p * at.extra
    extra = combine(at.kept * wrong, v) + stacked.abs() * gathered(wrong, -1).unsqueeze(-1)
    extra = extra + dot_extra(compute, stacked, (at.kept * p).square() @ v.square())
    lse_condition = 1 + (p * size).sum(-1) + largest.squeeze(-1)
    return {
        "o": Expected(
            o,
            parts=[(terms, condition.reshape(o.shape))],
            rounding=rounding.reshape(o.shape),
            extra=extra.reshape(o.shape),
            drift=0.2,
        ),
        "lse": Expected(
            lse,
            parts=[(of_l.reshape(lse.shape), lse_condition.reshape(lse.shape))],
            extra=gathered(wrong, -1).reshape(lse.shape),
            dtype=torch.float32,
            drift=0.2,
        ),
    }


def _powers_of_two(p: torch.Tensor) -> torch.Tensor:
    """Rows whose probabilities are 0 or one power of two: stored without rounding in any dtype."""
    largest = p.amax(-1, keepdim=True)
    equal = ((p == 0) | ((p - largest).abs() <= EPS32 * largest)).all(-1, keepdim=True)
    power = torch.exp2(torch.log2(largest.clamp_min(1e-300)).round())
    return equal & ((largest - power).abs() <= EPS32 * power)


Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def gradient_bounds(
    q, k, v, o, lse, do, gradients: Gradients, at: Probabilities, *, factor: float, dtype, compute: str | None
) -> dict[str, Expected]:
    """Of dq, dk and dv, with p from the given lse and delta from the given o; `factor` is |scale|."""
    dq, dk, dv = gradients
    if 0 in (*q.shape, *k.shape):
        return {name: Expected(gradient) for name, gradient in (("dq", dq), ("dk", dk), ("dv", dv))}
    kv_heads, tiny = k.shape[1], torch.finfo(dtype).tiny
    group = q.shape[1] // kv_heads
    p, rows, drows = at.p, stack(q, kv_heads), stack(do, kv_heads)
    sloped, shown = p * at.slope, p * at.kept
    products = drows * stack(o, kv_heads)
    delta = products.sum(-1, keepdim=True)
    dp = at.kept * (drows @ v.mT)
    ds = sloped * (dp - delta)

    # float32 accumulation: of the scores through exp (grows), of dp (gives), of delta (shift: one per row)
    grows = 1 + at.size + torch.nan_to_num(stack(lse, kv_heads), neginf=0.0).abs().unsqueeze(-1)
    gives = at.kept * (drows.abs() @ v.abs().mT)
    error = sloped * (grows * (dp - delta).abs() + gives) + p * at.bend * (dp - delta).abs()
    shift = products.abs().sum(-1, keepdim=True) + (p * grows * gives).sum(-1, keepdim=True)
    coherent = ds * grows
    dq_condition = factor * (combine(error, k) + (coherent @ k).abs() + shift * (sloped @ k).abs() + ds.abs() @ k.abs())
    dk_error = combine((error + sloped * shift).mT, rows) + (coherent.mT @ rows).abs() + ds.abs().mT @ rows.abs()
    dv_condition = (shown * grows).mT @ drows.abs()

    # intermediates in the input dtype: p, ds, delta from a rounded o, gradients of each query head before their sum
    stored = at.kept * torch.where(at.visible, p.clamp_min(tiny), 0.0)
    stored_ds = torch.where(at.visible, (factor * ds.abs()).clamp_min(tiny * max(1.0, factor)), 0.0) + factor * ds.abs()
    rounded_shift = gathered(products.abs(), -1).unsqueeze(-1)
    dq_rounding = combine(stored_ds, k) + factor * rounded_shift * (sloped @ k).abs()
    dk_rounding = combine((stored_ds + factor * sloped * rounded_shift).mT, rows)
    dv_rounding = combine(stored.mT, drows)
    # What is stored below the smallest normal is off to the same side where it is alike: ds before the scale or after,
    # and p, of which ds is made.
    flushed = [factor * _flushed(ds, dtype), _flushed(factor * ds, dtype)]
    flushed += [factor * _flushed(p, dtype) * at.slope * (dp - delta) + each for each in flushed]
    dq_rounding = dq_rounding + torch.stack([(lost @ k).abs() for lost in flushed]).amax(0) / EPS[dtype]
    dk_rounding = dk_rounding + torch.stack([(lost.mT @ rows).abs() for lost in flushed]).amax(0) / EPS[dtype]
    dv_rounding = dv_rounding + (_flushed(shown, dtype).mT @ drows).abs() / EPS[dtype]
    if group > 1:
        dk_rounding = dk_rounding + _per_head(factor * ds, rows, group)
        dv_rounding = dv_rounding + _per_head(shown, drows, group)

    dq_extra = dk_extra = dv_extra = torch.zeros(())
    if compute is not None:
        dp_error = at.kept * dot_extra(compute, drows @ v.mT, drows.square() @ v.square().mT)
        wrong = sloped * (at.extra * (dp - delta).abs() + dp_error)
        wrong_shift = (p * (at.extra * dp.abs() + dp_error)).sum(-1, keepdim=True)
        dq_extra = factor * (combine(wrong, k) + wrong_shift * (sloped @ k).abs())
        dq_extra = dq_extra + dot_extra(compute, stack(dq, kv_heads), factor**2 * (ds.square() @ k.square()))
        dk_extra = factor * combine((wrong + sloped * wrong_shift).mT, rows)
        dk_extra = dk_extra + dot_extra(compute, dk, factor**2 * (ds.square().mT @ rows.square()))
        dv_extra = combine((shown * at.extra).mT, drows) + dot_extra(compute, dv, shown.square().mT @ drows.square())
        dq_extra = dq_extra.reshape(q.shape)

    to_dq, to_dk, to_dv = (
        q.shape[-1] + multiplied(left, right) for left, right in ((ds, k), (ds.mT, rows), (shown.mT, drows))
    )
    return {
        "dq": Expected(
            dq,
            [(to_dq.reshape(q.shape), dq_condition.reshape(q.shape))],
            dq_rounding.reshape(q.shape),
            dq_extra,
            drift=0.2,
        ),
        "dk": Expected(dk, [(to_dk, factor * dk_error)], dk_rounding, dk_extra, drift=0.2),
        "dv": Expected(dv, [(to_dv, dv_condition)], dv_rounding, dv_extra, drift=0.2),
    }


def _flushed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """How far x is off when it is stored in `dtype`, where that has fewer digits for it: below its smallest normal."""
    return torch.where(x.abs() < torch.finfo(dtype).tiny, x.to(dtype).to(x.dtype) - x, 0.0)


def _per_head(weights: torch.Tensor, rows: torch.Tensor, group: int) -> torch.Tensor:
    """Σ over the heads of a group of |weightsᵀ·rows|, each head's own part."""
    batch, kv_heads, stacked, seq_k = weights.shape
    parts = weights.reshape(batch, kv_heads, group, stacked // group, seq_k).mT
    return (parts @ rows.reshape(batch, kv_heads, group, stacked // group, -1)).abs().sum(2)


def visible_pairs(seq_q: int, seq_k: int, causal: bool) -> int:
    """How many (query, key) pairs attention looks at."""
    if not causal:
        return seq_q * seq_k
    shown = min(seq_q, seq_k)  # the last `shown` queries see something
    return shown * (seq_k - shown) + shown * (shown + 1) // 2
