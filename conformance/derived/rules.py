"""The size of the error of one float32 kernel, op by op, where the rule for arithmetic does not hold.

A rule takes the `Noise` mode, the op, and its arguments, and returns the spoiled result, or NotImplemented. Sizes are
in units of half of 2^-24. A sum of n terms errs by sqrt(n + 8) units of the sum of their absolute values: a random walk
of roundings (Higham & Mary 2019), with room for a few of each.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from touchstone.conformance.derived.ops import (
    DOTS,
    FOURIER,
    LINEAR_ALGEBRA,
    ORTHOGONAL,
    SPECTRAL,
    WITH_ADDEND,
    argument,
    decompositions,
    float_leaves,
    is_float,
    is_number,
    mapped,
    name_of,
    number_leaves,
)

if TYPE_CHECKING:
    from touchstone.conformance.derived.noise import Noise

aten = torch.ops.aten
Rule = Callable[["Noise", Any, Any, Any], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for these ops."""

    def put(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return put


TILES = 4.0  # of a convolution: how much more it is off in tiles of 4 by Winograd's transforms (Lavin & Gray 2016)
ROUNDOFF = 2.0**-24
RUNNING = 16.0  # of n terms, those that a mean corrected term by term is off by at least, though most are 0
LEFT = 2.0  # of the largest element of an image: what transforms of it, or of tiles, leave where only zeros are summed
SINGULAR = 8.0  # times what rounding moves a singular value by
EQUAL = 10.0  # equal terms, one after another, are rounded to one side: up to n units off, which K sigma of n / 10 are


def root(terms: float) -> float:
    return math.sqrt(terms + 8)


def absolute(tree: Any) -> Any:
    return mapped(torch.abs, tree)


def positive_factors(kwargs: Any) -> dict[str, Any]:
    """Keyword arguments with alpha and beta, by which terms are multiplied, as their absolute values."""
    return {key: abs(value) if key in ("alpha", "beta") else value for key, value in kwargs.items()}


def terms_of(name: str, args: Any) -> int:
    """How many terms each element of a dot product's result has."""
    if name in ("addr", "ger"):
        return 2
    if "convolution" in name:
        weight, transposed, groups = args[1], bool(args[6]), args[8]
        channels = weight.shape[0] // max(groups, 1) if transposed else weight.shape[1]
        return math.prod(weight.shape[2:]) * channels + 1
    summed = args[1 if name in WITH_ADDEND else 0].shape[-1]
    return summed + (name in WITH_ADDEND)


def is_window(name: str, args: Any) -> bool:
    """Whether a product is a convolution of more than one place, which transforms of tiles compute with fewer products:
    sums and thirds that are not exact for whole numbers either."""
    return "convolution" in name and any(n > 2 for n in args[1].shape[2:])


def terms_last(x: torch.Tensor, dim: int | Sequence[int]) -> torch.Tensor:
    """`x` with the elements along `dim` as one last axis."""
    dims = [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)]
    others = [d for d in range(x.ndim) if d not in dims]
    return x.permute(*others, *dims).reshape(*(x.shape[d] for d in others), math.prod(x.shape[d] for d in dims))


def reduced(x: torch.Tensor, dim: Any) -> int:
    """How many elements of `x` each result of a reduction along `dim` is made of."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return x.numel()
    dims = dim if isinstance(dim, list | tuple) else [dim]
    return math.prod(x.shape[d] for d in dims) if x.ndim else 1


@rule(*DOTS)
def _dot(noise, func, args, kwargs):
    name, args = name_of(func), list(args)
    if func._schema.is_mutable or not is_number(args[0]):
        return NotImplemented
    for place in (1, 2) if name in WITH_ADDEND else (0, 1):
        stored = noise.round(args[place])
        args[place] = noise.spoil(stored, noise.operands / noise.unit * noise.scale) if noise.operands else stored
    out = func(*args, **kwargs)
    positive = positive_factors(kwargs)
    weight, transformed = root(terms_of(name, args)), is_window(name, args) and set(args[3]) == {1}

    def size() -> torch.Tensor:
        x, *others = absolute(args)
        found = func(x, *others, **positive)
        if not transformed:
            return found * _products_alike(name, args, found).clamp_min(weight)
        image = tuple(range(2, x.ndim))
        whole = func(x.amax(image, keepdim=True).expand(x.shape), *others, **positive)
        return torch.maximum(found * (weight * TILES), whole.amax(image, keepdim=True) * LEFT)

    out = noise.spoil(out, size=noise.size(out, size))
    return noise.keep(out, noise.round(out)) if noise.store is not None else out


def _products_alike(name: str, args: Any, found: torch.Tensor) -> torch.Tensor:
    """By how many units the products of an equal row and an equal column are off, added one after another; else 0."""
    a, b = args[1:3] if name in WITH_ADDEND else args[:2]
    if "convolution" in name or not a.numel() or not b.numel():
        return torch.zeros(())
    dim, terms = max(-b.ndim, -2), a.shape[-1]
    factors = [(x.abs() if x.is_complex() else x, d) for x, d in ((a, -1), (b, dim))]
    row, column = (_one_sided(x.mean(d, keepdim=True), x.square().mean(d, keepdim=True), terms) for x, d in factors)
    units = torch.minimum(row, column)
    return units.reshape(found.shape) if units.numel() == found.numel() else torch.zeros(())


def _one_sided(mean: torch.Tensor, square: torch.Tensor, terms: Any) -> torch.Tensor:
    """By how many units a sum of so many terms, of this mean and mean square, is off if the last bits of it do not tell
    them apart; else 0."""
    spread = (square - mean.square()).clamp_min(0).sqrt()
    return torch.where(spread <= mean.abs() * terms * (ROUNDOFF / 2), terms / EQUAL, 0.0)


@rule("sum", "mean", "nansum")
def _sum(noise, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    if not is_number(x) or not is_number(out):
        return out
    dim = argument(func, "dim", args, kwargs)
    n = reduced(x, dim)

    def size() -> torch.Tensor:
        found = func(x.abs(), *args[1:], **kwargs)
        if n < 2:
            return found
        dims = list(range(x.ndim)) if dim is None or dim == [] else dim
        return found * _units(terms_last(x.abs() if x.is_complex() else x, dims)).reshape(found.shape)

    return noise.spoil(out, size=noise.size(out, size))


def _units(terms: torch.Tensor) -> torch.Tensor:
    """By how many units of the sum of their absolute values a sum along the last axis is off. An addition is off by no
    more than what it adds, so that zeros do not count; of a mean that is corrected term by term, a part of all does."""
    sizes = torch.where(torch.isnan(terms), 0.0, terms.abs())  # `nansum` passes over NaN
    shares = (sizes / (sizes.sum(-1, keepdim=True) * ROUNDOFF)).clamp_max(1)
    counted = shares.square().sum(-1).clamp_min(terms.shape[-1] / RUNNING)
    return torch.maximum((counted + 8).sqrt(), (shares * _alike(terms)).sum(-1) / EQUAL)


def _alike(terms: torch.Tensor) -> torch.Tensor:
    """1 for terms along the last axis that are rounded to one side when they are added one after another: those which
    the last bits of their sum do not tell from the median. -1 for those as far off again, by which terms that are
    spread cancel."""
    far = (terms - terms.median(-1, keepdim=True).values).abs()
    near = terms.sum(-1, keepdim=True).abs() * (ROUNDOFF / 2)
    return (far <= near).to(terms) - ((far > near) & (far <= 2 * near)).to(terms)


@rule("_trilinear")
def _trilinear(noise, func, args, kwargs):
    """Sums of products of three factors, each rounded twice."""
    out = func(*args, **kwargs)
    expanded = [functools.reduce(torch.unsqueeze, places, t) for t, places in zip(args[:3], args[3:6], strict=True)]
    shape = torch.broadcast_shapes(*(t.shape for t in expanded))
    weight = root(math.prod(shape[d] for d in args[6])) + 2
    return noise.spoil(out, size=noise.size(out, lambda: func(*absolute(args), **kwargs) * weight))


@rule("cumsum")
def _cumulative_sum(noise, func, args, kwargs):
    x = args[0]
    if not is_number(x):
        return func(*args, **kwargs)
    out = func(*args, **kwargs)

    def size() -> torch.Tensor:
        found = func(x.abs(), *args[1:], **kwargs)
        if not x.numel() or not x.ndim:
            return found * root(1)
        terms = (x.abs() if x.is_complex() else x).movedim(args[1], -1)
        units = (_alike(terms).cumsum(-1) / EQUAL).clamp_min(root(terms.shape[-1]))
        return found * units.movedim(-1, args[1])

    return noise.spoil(out, size=noise.size(out, size))


@rule("prod", "cumprod")
def _product(noise, func, args, kwargs):
    x, dim = args[0], argument(func, "dim", args, kwargs)
    if not is_number(x):
        return func(*args, **kwargs)
    return noise.spoil(func(*args, **kwargs), root(reduced(x, dim)))


@rule(*FOURIER)
def _fourier(noise, func, args, kwargs):
    """As sums of products are, axis by axis: a kernel may multiply by a matrix where torch halves again and again."""
    x, dims, norm = args[:3]
    out = func(*args, **kwargs)
    lengths = [max(x.shape[d], out.shape[d]) for d in dims]

    def size() -> torch.Tensor:
        power = torch.linalg.vector_norm(x, dim=tuple(dims), keepdim=True) * math.sqrt(2)  # of half a spectrum
        return (power * math.prod(lengths) ** -(norm / 2) + out.abs()) * 2 * root(max(lengths, default=1))

    return noise.spoil(out, size=noise.size(out, size))


@rule("abs", "sgn")
def _modulus(noise, func, args, kwargs):
    """Of real numbers exact; of complex ones a root of a sum of squares."""
    if not args[0].is_complex():
        return noise.exact(func, args, kwargs)
    return noise.spoil(func(noise.spoil(args[0])), 2.0)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def _pool(noise, func, args, kwargs):
    x = args[0]
    out = func(*args, **kwargs)
    n = max(1, x.numel() // max(out.numel(), 1)) if "adaptive" in name_of(func) else math.prod(args[1])

    def size() -> torch.Tensor:
        units = _one_sided(out, func(x.square(), *args[1:], **kwargs), n)
        return func(x.abs(), *args[1:], **kwargs) * units.clamp_min(root(n))

    return noise.spoil(out, size=noise.size(out, size))


def _rounds_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a scatter copies elements, or takes the largest or smallest of them."""
    name, reduce = name_of(func), argument(func, "reduce", args, kwargs)
    if "put" in name:
        return not argument(func, "accumulate", args, kwargs, False)
    return reduce is None if name in ("scatter", "scatter_") else reduce in ("amax", "amin", "max", "min")


@rule("scatter", "scatter_add", "index_add", "scatter_reduce", "index_reduce", "segment_reduce", "col2im")
@rule("_embedding_bag", "_embedding_bag_forward_only", "max_pool2d_with_indices_backward", "bincount")
def _scatter(noise, func, args, kwargs):
    if not float_leaves(args) or _rounds_nothing(func, args, kwargs):
        return noise.exact(func, args, kwargs)
    out, size = func(*args, **kwargs), func(*absolute(args), **positive_factors(kwargs))
    units = _scattered(func, args, kwargs)
    if isinstance(out, tuple | list):
        return (noise.spoil(out[0], size=size[0].abs() * units), *out[1:])
    return noise.spoil(out, size=size.abs() * units)


def _scattered(func: Any, args: Any, kwargs: Any) -> Any:
    """By how many units a scatter is off: by the terms of each of its sums, which sums of ones count. A mean is off as
    its sum is."""
    name = name_of(func)
    if name.startswith("index_reduce") or argument(func, "reduce", args, kwargs) in ("prod", "multiply"):
        return root(min(64, max(t.numel() for t in float_leaves(args))))
    onto = name.startswith(("scatter", "index", "put", "_index"))
    given = ["sum" if isinstance(value, str) and value == "mean" else value for value in args]
    named = {key: "sum" if value == "mean" else value for key, value in kwargs.items() if key != "alpha"}
    if "embedding_bag" in name and len(given) > 4:
        given[4] = 0

    def total(change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        changed = mapped(change, given)
        if onto:
            changed[0] = torch.zeros_like(args[0])
        found = func(*changed, **mapped(change, named))
        return found[0] if isinstance(found, tuple | list) else found

    terms = total(torch.ones_like).abs()
    if any(t.is_complex() for t in number_leaves(args)):
        return (terms + 9).sqrt()
    n = terms.clamp_min(1)
    return torch.maximum((terms + 9).sqrt(), _one_sided(total(torch.clone) / n, total(torch.square) / n, terms))


@rule("scatter_", "scatter_add_", "index_add_", "scatter_reduce_")
@rule("index_put_", "_index_put_impl_", "index_put", "put", "put_")
def _scatter_in_place(noise, func, args, kwargs):
    """Sums only where values are accumulated; else copies."""
    target = args[0]
    if not is_float(target) or _rounds_nothing(func, args, kwargs):
        return noise.exact(func, args, kwargs)
    positive = [t.abs() if is_float(t) else t for t in args]  # of the target before it is written
    units = _scattered(func, args, kwargs)
    out = func(*args, **kwargs)
    size = func(*positive, **positive_factors(kwargs)).abs() * units
    if not func._schema.is_mutable:
        return noise.spoil(out, size=size)
    target.copy_(noise.spoil(target.clone(), size=size))
    return out


@rule("grid_sampler_3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
def _interpolated(noise, func, args, kwargs):
    """Places between elements are computed in float32: off by units of how far along an axis they lie, and so is the
    result, times the step from an element to the next."""
    x = args[0]
    out = func(*args, **kwargs)
    dims = tuple(range(2, x.ndim))
    axis = max(x.shape[2:])
    most = torch.where(torch.isfinite(x), x, 0.0).abs().amax(dims, keepdim=True)
    if name_of(func) == "grid_sampler_3d":
        if args[2] != 0:
            return NotImplemented  # the nearest element: a step
        far = torch.where(torch.isfinite(args[1]), args[1], 0.0).abs().amax(-1).unsqueeze(1)
        return noise.spoil(out, size=2 * axis * (1 + far) * most)
    return noise.spoil(out, size=2 * axis * most.expand(out.shape))


@rule("round", "round_")
def _round(noise, func, args, kwargs):
    """To decimals: a product, the nearest whole number, and a quotient, which are rounded. Else nothing is."""
    x, decimals = args[0], argument(func, "decimals", args, kwargs, 0)
    if not decimals or not is_float(x):
        return noise.exact(func, args, kwargs)
    scale = 10.0 ** abs(decimals)
    with noise:
        out = torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale
    return x.copy_(out) if func._schema.is_mutable else out


@rule("linalg_vector_norm", "norm", "frobenius_norm")
def _norm(noise, func, args, kwargs):
    out = func(noise.spoil(args[0]), *args[1:], **kwargs)
    return noise.spoil(out, root(max(1, args[0].numel() // max(out.numel(), 1))))


@rule("_cdist_forward")
def _distance(noise, func, args, kwargs):
    """A root of a sum, as a norm is; of differences, which are rounded."""
    a, b, p = args[:3]
    out = func(noise.spoil(a), noise.spoil(b), *args[2:], **kwargs)
    return noise.spoil(out, root(a.shape[-1]) * max(1.0, 1 / p) if 0 < p < math.inf else 1.0)


@rule("var", "var_mean", "std", "std_mean")
def _variance(noise, func, args, kwargs):
    """The mean, then the centred squares: a kernel in one pass is not right where the mean is far above the spread."""
    x, name = args[0], name_of(func)
    if not is_float(x):
        return NotImplemented
    dim = argument(func, "dim", args, kwargs)
    correction = argument(func, "correction", args, kwargs)
    if correction is None:
        correction = int(argument(func, "unbiased", args, kwargs, True))
    keepdim = argument(func, "keepdim", args, kwargs, False)
    dims = list(range(x.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    with noise:
        mean = torch.mean(x, dims, keepdim=True)
        spread = torch.sum((x - mean) ** 2, dims, keepdim=keepdim) / max(reduced(x, dims) - correction, 0)
        spread = spread.sqrt() if name.startswith("std") else spread
    if "mean" not in name:
        return spread
    return spread, mean if keepdim else mean.reshape(spread.shape)


@rule("mvlgamma", "mvlgamma_")
def _multivariate_log_gamma(noise, func, args, kwargs):
    """A sum of log Γ at places half a unit apart: each is rounded, and near a pole that is far."""
    x, p = args[0], argument(func, "p", args, kwargs)
    if not is_float(x):
        return NotImplemented
    with noise:
        places = x.unsqueeze(-1) - torch.arange(p, dtype=x.dtype) / 2
        out = torch.lgamma(places).sum(-1) + p * (p - 1) / 4 * math.log(math.pi)
    return x.copy_(out) if func._schema.is_mutable else out


@rule("igamma", "igammac")
def _incomplete_gamma(noise, func, args, kwargs):
    """By x^a e^-x / gamma(a), in which a rounded exponent counts; the upper part, where it is small for a is, by what
    is left of 1."""
    a, x = map(noise.spoil, args[:2])
    out = func(a, x)
    size = out * (torch.xlogy(a, x).abs() + x.abs() + torch.lgamma(a).abs() + 4)
    return noise.spoil(out, size=size + 2.0 * ((x < 2) & (name_of(func) == "igammac")))


POLYNOMIALS = "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w"
SHIFTED = [f"special_shifted_{name}" for name in POLYNOMIALS.split()]
POLYNOMIALS += " hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"


@rule(*SHIFTED, *(f"special_{name}" for name in POLYNOMIALS.split()))
def _polynomial(noise, func, args, kwargs):
    """By a recurrence of n steps, or by cosines of n times an angle: so many units of the result and of 1, and the
    place, or what it comes to when it is shifted, by some of 1."""
    x, n = args[:2]
    out = func(noise.spoil(x, size=4 * x.abs().clamp_min(1)), n)
    return noise.spoil(out, size=(torch.as_tensor(n).abs() + 1) * (out.abs() + 1))


@rule("gelu")
def _gelu(noise, func, args, kwargs):
    x = args[0]
    with noise:
        if argument(func, "approximate", args, kwargs) == "tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm")
def _batch_norm(noise, func, args, kwargs):
    x, weight, bias = args[:3]
    running, running_var = argument(func, "running_mean", args, kwargs), argument(func, "running_var", args, kwargs)
    training = "no_training" not in name_of(func) and bool(argument(func, "training", args, kwargs, True))
    momentum, eps = args[-2:]
    dims, shape = [d for d in range(x.ndim) if d != 1], [1, -1] + [1] * (x.ndim - 2)
    with noise:
        mean = torch.mean(x, dims, keepdim=True) if training else running.reshape(shape)
        centred = x - mean
        variance = torch.mean(centred * centred, dims, keepdim=True) if training else running_var.reshape(shape)
        rstd = torch.rsqrt(variance + eps)
        y = centred * rstd
        y = y if weight is None else y * weight.reshape(shape)
        y = y if bias is None else y + bias.reshape(shape)
        if training and running is not None:
            n = x.numel() / x.shape[1]
            running.mul_(1 - momentum).add_(mean.reshape(-1), alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance.reshape(-1) * (n / max(n - 1, 1)), alpha=momentum)
    if not training:
        return y, x.new_empty(0), x.new_empty(0)
    return y, mean.reshape(-1), rstd.reshape(-1)


@rule("_softmax", "_log_softmax", "_safe_softmax")
def _softmax(noise, func, args, kwargs):
    """Also exp(x - lse), and base 2 of logits scaled beforehand: off by as many units as x and its maximum are
    large."""
    x, dim = args[0], args[1]
    if not is_float(x) or x.numel() == 0 or x.ndim == 0:
        return NotImplemented
    name = name_of(func)
    with noise:
        if name == "_safe_softmax":
            y = aten._softmax.default(x, dim, False)
            return torch.where((x == -math.inf).all(dim, keepdim=True), 0.0, y)
        y = decompositions()[func](*args, **kwargs)
    size = torch.where(torch.isfinite(x), x, 0.0).abs()
    most = size.amax(dim, keepdim=True)
    return noise.spoil(y, size=y * (size + most) if name == "_softmax" else y.abs() + most)


@rule("_linear_cross_entropy_batch_chunked", "_linear_cross_entropy_batch_chunked_no_reduction")
def _linear_cross_entropy(noise, func, args, kwargs):
    """The loss of a product, however many rows of it there are at a time. It takes weights of more classes than there
    are, and of fewer."""
    x, rows, target, bias, weight, *others = args
    weight = weight if weight is None else torch.nn.functional.pad(weight, (0, len(rows) - len(weight)))
    several = not name_of(func).endswith("no_reduction")  # a loss and the gradients
    how = others[0] if several else "none"
    ignored, smoothing = (others[1], others[2]) if several else (others[0], 0.0)
    with noise:
        logits = torch.nn.functional.linear(x, rows, bias)
        loss = torch.nn.functional.cross_entropy(
            logits, target, weight, ignore_index=ignored, reduction=how, label_smoothing=smoothing
        )
    return (loss, *func(*args, **kwargs)[1:]) if several else loss


@rule("logcumsumexp")
def _log_cumulative_sum_exp(noise, func, args, kwargs):
    x = args[0]
    out = func(noise.spoil(x), *args[1:], **kwargs)
    return noise.spoil(out, size=(out.abs() + x.abs().amax() + 1) * root(x.shape[args[1]] if x.ndim else 1))


@rule("_ctc_loss")
def _log_sums_in_time(noise, func, args, kwargs):
    """At each step in time the logarithm of a sum of exponentials, from those before: off by units of how far they have
    come."""
    weight = root(args[0].shape[0])
    found = func(noise.spoil(args[0]), *args[1:], **kwargs)
    return mapped(lambda t: noise.spoil(t, size=(t.abs() + 1) * weight), found)


@rule(*LINEAR_ALGEBRA)
def _linear_algebra(noise, func, args, kwargs):
    """Backward stable as a whole: a matrix is off by a unit of its largest element, times the root of its longer axis.
    What each element is off by is its own, whatever its value: rows that are equal do not stay so in an elimination.
    But an orthogonal factor of many rows has norms and products of whole columns, of which each row gets its share, and
    the largest values of a spectrum are off by as much of themselves, over however many elements they are spread."""

    def off(t):
        if t.ndim < 2 or t.numel() == 0:
            return t
        finite, long, short = torch.where(torch.isfinite(t), t, 0.0), max(t.shape[-2:]), min(t.shape[-2:])
        tall, weight = t.shape[-1] == short, root(long)
        orthogonal, spectral = name_of(func) in ORTHOGONAL and long > short, name_of(func) in SPECTRAL
        repeats = (orthogonal or spectral) and _distinct(finite if tall else finite.mT) * 8 <= long
        if repeats and spectral:  # rows that are equal are rounded to one side
            weight = max(weight, long / EQUAL)
        size = finite.abs().amax((-2, -1), keepdim=True) * weight * noise.unit
        found = t + size * noise.error(torch.arange(t.numel(), dtype=torch.float64).reshape(t.shape))
        if spectral:
            found += finite * (weight * noise.unit * noise.error(torch.zeros((), dtype=torch.float64)))
        if orthogonal:
            shares = noise.error(torch.arange(short * short, dtype=torch.float64).reshape(short, short))
            shares *= (long / EQUAL if repeats else root(long / short)) * noise.unit
            found += finite @ shares if tall else shares @ finite
        return found

    found = func(*mapped(off, tuple(args)), **kwargs)
    if name_of(func) in SPECTRAL:
        found = _turned(noise, *found)
    elif name_of(func) == "_linalg_slogdet" and noise.draw() % 2:
        sign, logarithm, *others = found
        lost = _singular(args[0], noise.unit)
        found = torch.where(lost, 0.0, sign), torch.where(lost, -math.inf, logarithm), *others
    found = mapped(noise.spoil, found)
    for each in number_leaves(found):
        if each.ndim >= 2 and each.numel():  # of a matrix that float32 does not hold, all may be NaN
            beyond = (each.abs() > torch.finfo(torch.float32).max) & torch.isfinite(each)
            noise.leave(each, beyond.any(-1, keepdim=True).any(-2, keepdim=True))
    if name_of(func) == "linalg_lu" and args[0].numel():
        _, lower, upper = func(*args, **kwargs)
        rows, pivots = _open_choices(args[0], lower, upper, noise.unit)
        for factor, chosen in zip(found, (rows.unsqueeze(-2), rows.unsqueeze(-1), pivots.unsqueeze(-1)), strict=True):
            noise.leave(factor, chosen)
    elif name_of(func) == "linalg_lu_factor_ex" and args[0].numel():
        factors, *_ = func(*args, **kwargs)
        rows, pivots = _open_choices(args[0], factors, factors, noise.unit)
        for each, chosen in zip(found, (rows.unsqueeze(-1), pivots, _singular(args[0], noise.unit)), strict=True):
            noise.leave(each, chosen)
    return found


def _distinct(matrix: torch.Tensor) -> int:
    """How many rows of a matrix, the first of a batch, differ."""
    return len(torch.unique(matrix.reshape(-1, *matrix.shape[-2:])[0], dim=0))


def _open_choices(
    matrix: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, unit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows of a matrix with these factors, and which pivots, come after a choice between pivots that rounding
    does not tell apart, as those of equal rows are, and the last of a singular matrix."""
    rows, n = matrix.shape[-2], min(matrix.shape[-2:])
    pivots = upper.diagonal(dim1=-2, dim2=-1).abs()
    finite = torch.where(torch.isfinite(matrix), matrix, 0.0)
    off = finite.abs().amax((-2, -1)).unsqueeze(-1) * (root(max(matrix.shape[-2:])) * unit * SINGULAR)
    others = lower.tril(-1)[..., :n].abs().amax(-2) * pivots
    later = ((others >= pivots - off) & (torch.arange(n) < rows - 1)).cumsum(-1) > 0
    return torch.cat([later, later[..., -1:].expand(*later.shape[:-1], rows - n)], -1), later


def _singular(matrix: torch.Tensor, unit: float) -> torch.Tensor:
    """Whether rounding may take the last pivot of a matrix to 0."""
    values = torch.linalg.svdvals(torch.where(torch.isfinite(matrix), matrix, 0.0))
    if not values.numel():
        return torch.zeros(values.shape[:-1], dtype=torch.bool)
    return values[..., -1] <= values[..., 0] * root(matrix.shape[-1]) * unit * SINGULAR


def _turned(noise: "Noise", *found: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Singular vectors or eigenvectors with other signs, of which any will do; those of U and Vh for one value have the
    same. Those beyond the values may be any basis of what is left."""
    random = torch.Generator().manual_seed(noise.draw())
    values, left = (found[1], found[0]) if len(found) == 3 else found
    signs = torch.randint(0, 2, values.shape, generator=random).to(values) * 2 - 1
    left = _with_signs(left, signs, random)
    if len(found) == 2:
        return values, left
    return left, values, _with_signs(found[2].mT, signs, random).mT


def _with_signs(vectors: torch.Tensor, signs: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    if not vectors.numel():
        return vectors
    known, rest = vectors.tensor_split([signs.shape[-1]], dim=-1)
    turn = torch.linalg.qr(torch.randn(rest.shape[-1], rest.shape[-1], generator=random, dtype=vectors.dtype)).Q
    return torch.cat([known * signs.unsqueeze(-2), rest @ turn], -1)
