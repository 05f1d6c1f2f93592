"""The error budget: how far from the float64 answer a correct kernel can be, element by element.

    error <= T·eps(out)·max(|answer|, smallest normal of out)       one rounding of the result
           + C·eps(float32)·sqrt(terms + 8)·condition               float32 accumulation of `terms` terms
           + T·eps(in)·rounding                                     intermediates stored in the input dtype
           + extra                                                  a declared lower precision (compute="tf32")
           + 1e-30

`condition` is the sum of the absolute values of the terms, so a case with cancellation is allowed what its inputs
make unavoidable and no more. There is no absolute tolerance, no table per dtype and none per backend.
Written so that NaN fails. Constants and their measurement: docs/verification.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

T = 0.75  # one rounding to nearest is 0.5 of eps times the value
C = 2.0
FLOOR = 1e-30
EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
EPS32 = EPS[torch.float32]
# rounding of an operand that a variant declares: `compute = "tf32"`; tf32x3 keeps two tf32 pieces of each operand
COMPUTE = {"tf32": 2.0**-10, "tf32x3": 2.0**-21, "bf16": 2.0**-7}
DRIFT_ELEMENTS = 500

Scalar = float | torch.Tensor


@dataclass
class Expected:
    """What one output must be. Tensors are float64, of the output's shape (or broadcastable to it)."""

    answer: torch.Tensor
    parts: Sequence[tuple[Scalar, Scalar]] = ()  # (terms, condition) pairs
    rounding: Scalar = 0.0  # in units of the value; multiplied by T·eps(input dtype)
    extra: Scalar = 0.0  # absolute, for a declared precision
    dtype: torch.dtype | None = None  # None: the dtype of the inputs
    drift: float = 0.06  # limit of the mean signed error, in eps; inf where an output has none
    alternatives: list["Expected"] = field(default_factory=list)  # other answers the literature accepts, whole tensors


def simple(
    answer: torch.Tensor, terms: float = 1, condition: Scalar | None = None, dtype: torch.dtype | None = None
) -> Expected:
    """The budget of an output that a kernel computes in float32, as a sum of `terms` terms, and rounds once.

    `condition` is the sum of the absolute values of the terms, of the answer's shape; None stands for |answer|, which
    is right where nothing cancels: terms of one sign, products, quotients. `dtype` is the output's where it has its
    own.
    """
    size = answer.abs() if condition is None else torch.as_tensor(condition).abs()
    return Expected(answer, parts=[(terms, finite(size))], dtype=dtype)


@dataclass
class Verdict:
    """One output compared. `fraction` is the worst error over its budget; above 1, or NaN, fails."""

    fraction: float
    message: str | None = None
    worst: tuple[int, ...] | None = None
    first: tuple[int, ...] | None = None
    bad: torch.Tensor | None = None  # which elements are outside, as booleans of the output's shape

    @property
    def ok(self) -> bool:
        return self.message is None


def dot_extra(compute: str | None, answer: torch.Tensor, squares: torch.Tensor) -> Scalar:
    """Extra budget of one dot product whose operands are rounded as `compute` says; `squares` is sum(a²·b²)."""
    if compute is None:
        return 0.0
    unit = COMPUTE[compute]
    return 2 * unit * answer.abs() + 4 * unit * squares.sqrt()


def budget(expected: Expected, in_dtype: torch.dtype) -> torch.Tensor:
    """The absolute error allowed for each element of `expected.answer`."""
    out = expected.dtype or in_dtype
    size = finite(expected.answer).abs().clamp_min(torch.finfo(out).tiny)
    total = T * EPS[out] * size + FLOOR
    for terms, condition in expected.parts:
        root = (terms + 8.0) ** 0.5
        total = total + C * EPS32 * root * condition
    return total + T * EPS[in_dtype] * expected.rounding + expected.extra


def finite(x: torch.Tensor) -> torch.Tensor:
    """`x` with 0 in place of NaN and infinities: what budgets are computed from."""
    return torch.where(torch.isfinite(x), x, torch.zeros((), dtype=x.dtype, device=x.device))


def overflow_threshold(dtype: torch.dtype) -> float:
    """The smallest magnitude that rounds to infinity in `dtype`."""
    largest = torch.finfo(dtype).max
    return (
        largest * (1 + EPS[dtype] / 4)
        if dtype is torch.float64
        else largest + 2.0 ** (math.floor(math.log2(largest))) * EPS[dtype] / 2
    )


def compare(got: torch.Tensor, expected: Expected, in_dtype: torch.dtype, exact: bool = False) -> Verdict:
    """Judge `got` against the answer, or against the alternative answer it comes closest to."""
    verdicts = [_compare(got, answer, in_dtype, exact) for answer in (expected, *expected.alternatives)]
    return min(verdicts, key=lambda verdict: (not verdict.ok, verdict.fraction))


def _compare(got: torch.Tensor, expected: Expected, in_dtype: torch.dtype, exact: bool) -> Verdict:
    out = expected.dtype or in_dtype
    value = got.detach().cpu().to(torch.float64)
    answer = expected.answer.cpu().expand(value.shape)
    if answer.numel() == 0:
        return Verdict(0.0)
    if exact:
        ok = value == answer.to(out).to(torch.float64)
        fraction = torch.where(ok, 0.0, math.inf)
        return _verdict(ok, fraction, value, answer, None, "must be bit-equal: every intermediate is exact")
    allowed = torch.as_tensor(budget(expected, in_dtype)).cpu().expand(answer.shape)
    allowed = torch.where(torch.isfinite(answer) & torch.isinf(allowed), math.nan, allowed)  # no budget at all: fails
    limit = overflow_threshold(out)
    error = (finite(value) - finite(answer)).abs()
    both_finite = torch.isfinite(value) & torch.isfinite(answer)
    within = both_finite & (error <= allowed) & ~(answer.abs() - allowed >= limit)
    nan_ok = torch.isnan(value) & torch.isnan(answer)
    same_sign = torch.sign(value) == torch.sign(answer)
    inf_ok = torch.isinf(value) & ~torch.isnan(answer) & same_sign & (answer.abs() + allowed >= limit)
    ok = within | nan_ok | inf_ok
    fraction = torch.where(ok & ~within, torch.zeros_like(error), error / allowed)
    fraction = torch.where(ok | both_finite, fraction, math.inf)
    verdict = _verdict(ok, fraction, value, answer, allowed, "")
    if verdict.ok:
        verdict.message = _drift(value, answer, allowed, out, expected.drift)
        if verdict.message:
            verdict.fraction = math.inf
    return verdict


def _verdict(ok, fraction, value, answer, allowed, why: str) -> Verdict:
    worst_fraction = float(fraction.max())
    if bool(ok.all()):
        return Verdict(worst_fraction)
    bad = ~ok
    flat = torch.where(bad, fraction, torch.full_like(fraction, -1.0)).flatten()
    worst = _index(int(flat.argmax()), answer.shape)
    first = _index(int(bad.flatten().to(torch.uint8).argmax()), answer.shape)
    parts = [f"{int(bad.sum())} of {bad.numel()} elements wrong"]
    for label, where in (("first", first), ("worst", worst)):
        if label == "worst" and where == first:
            continue
        text = f"{label} at {list(where)}: got {value[where].item():.9g}, expected {answer[where].item():.9g}"
        if allowed is not None and math.isfinite(fraction[where].item()):
            text += f" ± {allowed[where].item():.3g} ({fraction[where].item():.3g} of the budget)"
        parts.append(text)
    if why:
        parts.append(why)
    return Verdict(max(worst_fraction, 1.0 + 1e-9), "; ".join(parts), worst, first, bad)


def _index(flat: int, shape) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def _drift(value, answer, allowed, out: torch.dtype, limit: float) -> str | None:
    """Truncation hides inside any elementwise budget, but not in the mean signed error of many distinct values.

    The error counted is that beyond rounding to nearest, whose own mean is not 0 where answers crowd next to
    representable values (weight·(1 - 2^-11) for a row of equal x).
    """
    eps, tiny = EPS[out], torch.finfo(out).tiny
    usable = (
        torch.isfinite(value)
        & torch.isfinite(answer.to(out))  # near overflow either side is right
        & (answer.abs() > 64 * tiny)
        & (allowed < 1.25 * eps * answer.abs())
    )
    if not math.isfinite(limit) or int(usable.sum()) < DRIFT_ELEMENTS:
        return None
    signed = ((value - answer.to(out).to(torch.float64)) * answer.sign() / (eps * answer.abs()))[usable]
    distinct, group = answer[usable].unique(return_inverse=True)
    if distinct.numel() < DRIFT_ELEMENTS:
        return None
    sums = torch.zeros_like(distinct).scatter_add_(0, group, signed)
    counts = torch.zeros_like(distinct).scatter_add_(0, group, torch.ones_like(signed))
    mean = float((sums / counts).mean())
    if abs(mean) <= limit:
        return None
    return (
        f"errors lean one way: the mean signed error over {distinct.numel()} distinct values is {mean:+.3f} eps "
        f"(limit {limit}): truncated instead of rounded, or something systematic is missing"
    )
