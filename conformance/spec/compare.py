"""The comparator: one output of a kernel against the float64 answer, element by element, within its error budget.

Written so that NaN fails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from touchstone.conformance.spec.budget import EPS, Expected, budget, finite, overflow_threshold

DRIFT_ELEMENTS = 500
LEAN = "errors lean one way"
ONE_WAY = 0.02  # errors of the rarer sign for one of the other, where all are taken to have one
CUT = 0.4  # of the elements, that truncation makes other ones than rounding to nearest, at least
# elements of a slice that tell its mean; how far apart means are, in times of what chance makes, and of the lean
OF_A_SLICE, APART, UNLIKE = 32, 3.0, 0.25


@dataclass
class Verdict:
    """One output compared. `fraction` is the worst error over its budget; above 1, or NaN, fails."""

    fraction: float
    message: str | None = None
    worst: tuple[int, ...] | None = None
    first: tuple[int, ...] | None = None
    bad: torch.Tensor | None = None  # which elements are outside, as booleans of the output's shape
    note: str = ""  # of the alternative answer that it is
    excused: int = 0  # elements that were not judged

    @property
    def ok(self) -> bool:
        return self.message is None

    @property
    def distance(self) -> tuple[bool, int, float]:
        """How far from the answer: with most elements right it is that one, however far off the worst is."""
        return not self.ok, 0 if self.bad is None else int(self.bad.sum()), self.fraction


def compare(got: torch.Tensor, expected: Expected, in_dtype: torch.dtype, exact: bool = False) -> Verdict:
    """Judge `got` against the answer, or against the alternative answer it comes closest to; that one's note is given
    where `got` is none of those without a note."""
    answers = [expected, *expected.alternatives]
    verdicts = [_compare(got, answer, in_dtype, exact) for answer in answers]
    if expected.otherwise is not None and not any(verdict.ok for verdict in verdicts):
        for answer in expected.otherwise():
            answers.append(answer)
            verdicts.append(_compare(got, answer, in_dtype, exact))
            if verdicts[-1].ok:
                break
    closest = min(verdicts, key=lambda verdict: verdict.distance)
    noted = [answer.note for answer, verdict in zip(answers, verdicts, strict=True) if verdict.ok]
    closest.note = next(iter(noted), "") if all(noted) else ""
    if isinstance(expected.excused, torch.Tensor):
        closest.excused = int(expected.excused.expand(got.shape).sum())
    return closest


def _compare(got: torch.Tensor, expected: Expected, in_dtype: torch.dtype, exact: bool) -> Verdict:
    out = expected.dtype or in_dtype
    value = got.detach().cpu().to(torch.float64)
    answer = expected.answer.cpu().expand(value.shape)
    if answer.numel() == 0:
        return Verdict(0.0)
    if expected.excused is not None:
        excused = expected.excused(got.detach().cpu()) if callable(expected.excused) else expected.excused
        got = torch.where(excused, answer.to(out), got.detach().cpu())
        value = got.to(torch.float64)
    if expected.bitwise or not out.is_floating_point:
        wanted = answer.to(out)
        ok = (bits(got.detach().cpu()) == bits(wanted)) | (torch.isnan(value) & torch.isnan(answer))
        return _verdict(ok, torch.where(ok, 0.0, math.inf), value, answer, None, "must be equal bit by bit")
    if exact or expected.exact:
        ok = value == answer.to(out).to(torch.float64)
        fraction = torch.where(ok, 0.0, math.inf)
        return _verdict(ok, fraction, value, answer, None, "must be bit-equal: every intermediate is exact")
    known = _known(expected, answer, in_dtype, out)
    allowed = known.allowed
    if known.is_usual:
        error = (value - answer).abs()
        if bool((error <= allowed).all()):  # false of NaN
            verdict = Verdict(float((error / allowed).max()))
            verdict.message = _drift(value, known, expected.drift)
            if verdict.message:
                verdict.fraction = math.inf
            return verdict
    error = (finite(value) - known.finite).abs()
    both_finite = torch.isfinite(value) & known.is_finite
    within = both_finite & (error <= allowed) & ~known.overflows
    nan_ok = torch.isnan(value) & known.is_nan
    same_sign = torch.sign(value) == torch.sign(answer)
    inf_ok = torch.isinf(value) & ~known.is_nan & same_sign & known.may_overflow
    ok = within | nan_ok | inf_ok
    fraction = torch.where(ok & ~within, torch.zeros_like(error), error / allowed)
    fraction = torch.where(ok | both_finite, fraction, math.inf)
    verdict = _verdict(ok, fraction, value, answer, allowed, "")
    if verdict.ok:
        verdict.message = _drift(value, known, expected.drift)
        if verdict.message:
            verdict.fraction = math.inf
    return verdict


class _Known:
    """What comparing with an answer takes of the answer and its budget alone: many kernels are compared with one."""

    def __init__(self, expected: Expected, answer: torch.Tensor, in_dtype: torch.dtype, out: torch.dtype) -> None:
        allowed = torch.as_tensor(budget(expected, in_dtype)).cpu().expand(answer.shape)
        self.answer, self.out, self.limit = answer, out, overflow_threshold(out)
        self.is_finite = torch.isfinite(answer)
        self.allowed = torch.where(self.is_finite & torch.isinf(allowed), math.nan, allowed)  # no budget at all: fails
        self.overflows = answer.abs() - self.allowed >= self.limit
        self.is_usual = bool((self.is_finite & torch.isfinite(self.allowed) & ~self.overflows).all())

    @cached_property
    def finite(self) -> torch.Tensor:
        return finite(self.answer)

    @cached_property
    def is_nan(self) -> torch.Tensor:
        return torch.isnan(self.answer)

    @cached_property
    def may_overflow(self) -> torch.Tensor:
        return self.answer.abs() + self.allowed >= self.limit

    @cached_property
    def rounded(self) -> torch.Tensor:
        """The answer in the output's dtype."""
        return self.answer.to(self.out)

    @cached_property
    def telling(self) -> torch.Tensor:
        """The elements of which errors tell whether they lean one way."""
        size = self.answer.abs()
        near = size > 64 * torch.finfo(self.out).tiny
        return torch.isfinite(self.rounded) & near & (self.allowed < 1.25 * EPS[self.out] * size)

    @cached_property
    def some_tell(self) -> bool:
        return int(self.telling.sum()) >= DRIFT_ELEMENTS

    @cached_property
    def told(self) -> "_Told":
        return _Told(self, self.telling)


class _Told:
    """Of the elements that tell: the answer rounded, its sign, the unit of an error, and how often each distinct answer
    occurs among them, with the number of each element's."""

    def __init__(self, known: _Known, usable: torch.Tensor) -> None:
        answer = known.answer[usable]
        self.usable, self.rounded = usable, known.rounded[usable].to(torch.float64)
        self.sign, self.unit = answer.sign(), EPS[known.out] * answer.abs()
        distinct, self.group = answer.unique(return_inverse=True)
        self.counts = torch.zeros_like(distinct).scatter_add_(0, self.group, torch.ones_like(answer))


def _known(expected: Expected, answer: torch.Tensor, in_dtype: torch.dtype, out: torch.dtype) -> _Known:
    key = in_dtype, answer.shape
    if key not in expected.compared:
        expected.compared[key] = _Known(expected, answer, in_dtype, out)
    return expected.compared[key]


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of each element as an integer."""
    if not x.is_floating_point():
        return x
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


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


def _drift(value: torch.Tensor, known: _Known, limit: float) -> str | None:
    """Truncation hides inside any elementwise budget, but not in the mean signed error of many distinct values.

    The error counted is that beyond rounding to nearest, whose own mean is not 0 where answers crowd next to
    representable values (weight·(1 - 2^-11) for a row of equal x).
    """
    if not math.isfinite(limit) or not known.some_tell:
        return None
    told = known.told
    given = value[told.usable]
    if not bool(torch.isfinite(given).all()):  # near overflow either side is right
        told = _Told(known, told.usable & torch.isfinite(value))
        given = value[told.usable]
    if told.counts.numel() < DRIFT_ELEMENTS:
        return None
    signed = (given - told.rounded) * told.sign / told.unit
    sums = torch.zeros_like(told.counts).scatter_add_(0, told.group, signed)
    mean = float((sums / told.counts).mean())
    if abs(mean) <= limit:
        return None
    return (
        f"{LEAN}: the mean signed error over {told.counts.numel()} distinct values is {mean:+.3f} eps (limit {limit}): "
        f"{_leaning(signed, told, mean)}"
    )


def _leaning(signed: torch.Tensor, told: _Told, mean: float) -> str:
    """What errors that lean look like, in words: `signed` ones, above 0 away from 0. Other means in each slice along an
    axis are those of a number that its elements share; else those of half of them, all of one sign, are a
    rounding's."""
    nth = torch.arange(len(signed))
    firsts = torch.full_like(told.counts, len(signed), dtype=torch.int64).scatter_reduce_(0, told.group, nth, "amin")
    signed, shape, places = signed[firsts], told.usable.shape, told.usable.nonzero()[firsts]
    for axis in range(len(shape) if len(shape) > 1 else 0):
        counts = torch.bincount(places[:, axis], minlength=shape[axis])
        able = counts >= OF_A_SLICE
        means = (torch.bincount(places[:, axis], signed, minlength=shape[axis]) / counts)[able]
        if means.numel() < 2 or means.std() < UNLIKE * abs(mean):
            continue
        by_chance = signed.std() / counts[able] ** 0.5
        if float(((means - means.mean()) / by_chance).square().mean()) > APART**2:
            each = f"{means.min().item():+.2f} to {means.max().item():+.2f} eps"
            return f"another mean in each slice of axis {axis}, {each}: a number that the slice shares is off"
    ways = sorted((int((signed > 0).sum()), int((signed < 0).sum())))
    if ways[0] > ONE_WAY * ways[1] or ways[1] < CUT * len(signed):
        off = f"{sum(ways) / len(signed):.0%} are a unit off, so not truncated"
        others = "a number that many elements share is off, or something systematic is missing"
        return f"{off}: a rounding before the last, or another one of ties, {others}"
    way = "truncated" if mean < 0 else "rounded away from 0"
    return f"{way} instead of rounded to nearest, or something systematic is missing"


def worst(fractions: Sequence[float]) -> float | None:
    """The worst of some fractions of the budget; NaN wins."""
    if not fractions:
        return None
    return max(fractions, key=lambda f: (f != f, f))
