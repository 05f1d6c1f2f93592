"""Whether the parts of an output are wrong as with another mean or variance than their own, and by how much: two
numbers of each, of which one alone may do; or as with a variance in which padding counts."""

from collections.abc import Callable, Sequence

import torch

from touchstone.conformance.judging import reading
from touchstone.conformance.spec.budget import EPS, budget
from touchstone.conformance.spec.contract import Case, Contract

LEAST = 8  # elements of a part that tell two numbers
FAR = 3.0  # budgets by which most of what is wrong has to be
OFF = 16.0  # times its own, at most, is another variance
EXPLAINS = 0.95  # of the wrong elements
NEAR, APART = (
    0.02,
    0.05,
)  # of the variance with padding, what may be left, and the least part that the mean's square has
CANCELS = 1e2  # mean^2 by the variance, at least, where the difference of two sums of about that size cancels
TILES = (8, 16, 32, 64, 128, 256, 512, 1024)  # to multiples of which a part may be padded
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


def padding(
    contract: Contract, case: Case, given: reading.Given, cases: Sequence[Case], output: str, call: reading.Call
) -> str | None:
    """To which length each part of an output is padded, by elements that count in its variance as 0 less the mean, in
    words; None: to none, or it does not explain a case, of which the output is `given`, or those of several sizes do
    not tell. `cases` are such, plain ones."""
    own = contract.own_statistics
    if own is None or output != own.output or not own.mean:
        return None
    left, told = {"the next power of two": _power} | {f"a multiple of {t}": _multiple(t) for t in TILES}, set[int]()
    left = {name: to for name, to in left.items() if _explains(contract, case, given, to)}
    for one in cases if left else ():
        of_one = reading.given_on(contract, one, output, call)
        if of_one is None:
            continue
        if bool(of_one.bad.any()):
            told.add(_length(contract, one))
        left = {name: to for name, to in left.items() if _explains(contract, one, of_one, to)}
        if (found := _variances(contract, one, of_one)) is not None:
            theirs, variance, squares, count = found
            tells = squares > APART * variance  # the others are within what rounding does to them
            padded = {name: variance + squares * (to(count) / count - 1) for name, to in left.items()}
            near = {
                name for name, other in padded.items() if bool(((other - theirs).abs() <= NEAR * theirs)[tells].all())
            }
            left = {name: to for name, to in left.items() if name in near}
    if len(told) < 2 or not left:
        return None
    counted = "the padding counted in its variance, as 0 less the mean"
    return f"each {own.part} is as if it were padded to {next(iter(left))} and {counted}"


def _explains(contract: Contract, case: Case, given: reading.Given, to: Callable[[int], int]) -> bool:
    """Whether an output is, where it is wrong, what variances with so much padding make of the answer; where all is
    right, whether it would be so with them."""
    own = contract.own_statistics
    assert own is not None
    got, right, bad = given
    exact, eps = contract.build(case).exact, float(case.param["eps"])
    _, shift, parts = own.of(exact, case.param)
    x = own.x(exact).expand(got.shape).reshape(parts, -1)
    variance, count = x.var(1, correction=0), x.shape[1]
    factor = ((variance + eps) / (variance + x.mean(1) ** 2 * (to(count) / count - 1) + eps)).sqrt()
    answer, shift = right.answer.cpu().expand(got.shape), shift.expand(got.shape)
    theirs = ((answer - shift).reshape(parts, -1) * factor[:, None]).reshape(got.shape) + shift
    allowed = torch.as_tensor(budget(right, case.torch_dtype)).expand(got.shape)
    if not bool(bad.any()):
        return bool(((theirs - answer).abs() <= allowed).all())
    allowed = allowed + EPS.get(case.torch_dtype, 0.0) * got.double().abs()
    return bool(((got.double() - theirs).abs() <= allowed)[bad].double().mean() >= EXPLAINS)


def _variances(
    contract: Contract, case: Case, given: reading.Given
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int] | None:
    """Of each part the variance that what a kernel gives tells, its own, the square of its mean, and its length."""
    own = contract.own_statistics
    assert own is not None
    exact, eps, got = contract.build(case).exact, float(case.param["eps"]), given.got.double()
    _, shift, parts = own.of(exact, case.param)
    got, right = (
        (x - shift).expand(got.shape).reshape(parts, -1) for x in (got, given.right.answer.cpu().expand(got.shape))
    )
    x = own.x(exact).expand(given.got.shape).reshape(parts, -1)
    if got.shape[1] < LEAST or not bool(got.isfinite().all() & right.isfinite().all()):
        return None
    factor = (got * right).sum(1) / right.square().sum(1)
    variance = x.var(1, correction=0)
    return factor**-2.0 * (variance + eps) - eps, variance, x.mean(1) ** 2, x.shape[1]


def _length(contract: Contract, case: Case) -> int:
    """The elements of a part."""
    own = contract.own_statistics
    assert own is not None
    exact = contract.build(case).exact
    return own.x(exact).numel() // own.of(exact, case.param)[2]


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


def _multiple(tile: int) -> Callable[[int], int]:
    return lambda count: -(-count // tile) * tile


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
