"""Whether the parts of an output are wrong as with another mean or variance than their own, and by how much: two
numbers of each, of which one alone may do; or as with a variance in which padding counts."""

from collections.abc import Callable, Sequence

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.spec.contract import Case, Contract

LEAST = 8  # elements of a part that tell two numbers
FAR = 3.0  # budgets by which most of what is wrong has to be
OFF = 16.0  # times its own, at most, is another variance
EXPLAINS = 0.95  # of the wrong elements
CANCELS = 1e2  # mean^2 by the variance, at least, where the difference of two sums of about that size cancels
TILES = (8, 16, 32, 64, 128, 256, 512, 1024)  # to multiples of which a part may be padded
NEAR, APART = 0.02, 0.05  # of the variance with padding, what may be left, and what it is off without, at least
SIZES = 4  # others in which that is tried
ROUNDINGS = (0.02, 256.0)  # of mean^2 in float32, that such a difference is off by: the median at least, each at most


def of_parts(
    contract: Contract,
    case: Case,
    output: str,
    value: torch.Tensor,
    answer: torch.Tensor,
    allowed: torch.Tensor,
    bad: torch.Tensor,
) -> str | None:
    """As with which mean and variance each part of an output is wrong, in words. All in float64 on the CPU."""
    own = contract.own_statistics
    if own is None or output != own.output or not bool(value.isfinite().all() & answer.isfinite().all()):
        return None
    far = ((value - answer).abs() / allowed)[bad]
    if far.median() < FAR:
        return None
    scale, shift, parts = own.of(contract.build(case).exact, case.param)
    scale, got, right, near, wrong = (
        x.expand(value.shape).reshape(parts, -1) for x in (scale, value - shift, answer - shift, allowed, bad)
    )
    if got.shape[1] < LEAST:
        return None
    for scaled, shifted in ((True, False), (False, True), (True, True)) if own.mean else ((True, False),):
        factor, added = _fitted(got, right, scale, near, scaled, shifted)
        model = factor * right + added * scale
        if ((model - got).abs() <= near)[wrong].double().mean() < EXPLAINS:
            continue
        touched = wrong.any(1)
        if scaled and own.mean and bool((factor[touched] > 0).all()):
            x = own.x(contract.build(case).exact).expand(value.shape).reshape(parts, -1)
            if text := _cancelled(x[touched], factor[touched] ** -2.0, float(case.param["eps"])):
                return f"each {own.part} is as with {text}"
        low, high = (float(x) for x in (factor[touched] ** -2.0).aminmax())
        if not (bool((factor[touched] > 0).all()) and low >= 1 / OFF and high <= OFF):
            return None  # next to nothing, or no variance
        variance = f"a {'variance' if own.mean else 'mean of squares'} of {_range(low, high)} of its own"
        mean = f"a mean off by up to {float((added / factor)[touched].abs().max()):.2g} of its deviation"
        said = {(True, False): f"{variance}{', and its own mean' if own.mean else ''}"}
        said |= {(False, True): f"{mean}, and its own variance", (True, True): f"{mean}, and {variance}"}
        return f"each {own.part} is as with {said[scaled, shifted]}"
    return None


def _cancelled(x: torch.Tensor, times: torch.Tensor, eps: float) -> str | None:
    """Whether variances, each with eps so many times its own, are off by roundings of the square of the mean, in
    words."""
    squares, variance = x.mean(1, keepdim=True) ** 2, x.var(1, correction=0, keepdim=True)
    off = (times - 1).abs() * (variance + eps)
    least, most = ROUNDINGS
    roundings = off / (squares * 2.0**-24)
    if not bool((squares >= CANCELS * variance).all()) or roundings.median() < least or roundings.max() > most:
        return None
    by = float((squares / variance.clamp_min(1e-300)).min().sqrt())
    return (
        f"a variance that is off by up to {float(roundings.max()):.3g} roundings of mean^2 in float32, as E[x^2] - "
        f"E[x]^2 is: it cancels where the mean is large, here at least {by:.3g} deviations"
    )


def padding(contract: Contract, cases: Sequence[Case], output: str, call: reading.Call) -> str | None:
    """To which length each part of an output is padded, by elements that count in its variance as 0 less the mean, in
    words; None: to none, or cases of several sizes do not tell. `cases` are such, plain ones."""
    own = contract.own_statistics
    if own is None or output != own.output or not own.mean:
        return None
    left, told = {"the next power of two": _power} | {f"a multiple of {t}": _multiple(t) for t in TILES}, set[int]()
    for case in cases:
        given = reading.given_on(contract, case, output, call)
        if given is None:
            continue
        got, right, _ = given
        found = _variances(contract, case, got.double(), right.answer.cpu().expand(got.shape))
        if found is None:
            continue
        theirs, variance, squares, count = found
        off = ((theirs - variance).abs() > APART * variance) & (squares > APART * variance)
        if not bool(off.any()) and bool((squares > APART * variance).any()):  # right there, as where nothing is padded
            left = {name: to for name, to in left.items() if to(count) == count}
            continue
        left = {
            name: to
            for name, to in left.items()
            if bool(((variance + squares * (to(count) / count - 1) - theirs).abs() <= NEAR * theirs)[off].all())
        }
        told.add(count)
    if len(told) < 2 or not left:
        return None
    counted = "the padding counted in its variance, as 0 less the mean"
    return f"each {own.part} is as if it were padded to {next(iter(left))} and {counted}"


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _multiple(tile: int) -> Callable[[int], int]:
    return lambda count: -(-count // tile) * tile


def _variances(
    contract: Contract, case: Case, value: torch.Tensor, answer: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int] | None:
    """Of each part the variance that what a kernel gives tells, its own, the square of its mean, and its length."""
    own = contract.own_statistics
    assert own is not None
    exact, eps = contract.build(case).exact, float(case.param["eps"])
    _, shift, parts = own.of(exact, case.param)
    got, right = ((x - shift).expand(value.shape).reshape(parts, -1) for x in (value, answer))
    x = own.x(exact).expand(value.shape).reshape(parts, -1)
    if got.shape[1] < LEAST or not bool(got.isfinite().all() & right.isfinite().all()):
        return None
    factor = (got * right).sum(1) / right.square().sum(1)
    variance = x.var(1, correction=0)
    return factor**-2.0 * (variance + eps) - eps, variance, x.mean(1) ** 2, x.shape[1]


def _fitted(
    got: torch.Tensor, right: torch.Tensor, scale: torch.Tensor, near: torch.Tensor, scaled: bool, shifted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor and the multiple of the scale, of each part, that take what is right nearest to what is given."""
    one, none = torch.ones(len(got), 1).double(), torch.zeros(len(got), 1).double()
    terms = [x for x, taken in ((right, scaled), (scale, shifted)) if taken]
    left = got if scaled else got - right
    found = torch.linalg.lstsq(torch.stack([t / near for t in terms], 2), (left / near)[..., None]).solution[..., 0]
    return found[:, :1] if scaled else one, found[:, -1:] if shifted else none


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"
