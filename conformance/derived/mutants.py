"""Wrong versions of any function: one op of it altered. What of them a contract rejects says how strong it is."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from touchstone.conformance.derived.forms import as_reduced, by_channels, normalized
from touchstone.conformance.derived.ops import (
    DOTS,
    EXACT,
    SPECIAL,
    Mode,
    argument,
    float_leaves,
    in_parts,
    is_float,
    is_number,
    name_of,
    number_leaves,
    tensors_of,
    words,
)
from touchstone.conformance.derived.rules import reduced, terms_last
from touchstone.conformance.derived.samples import cast
from touchstone.conformance.spec.onednn import without_onednn

ELEMENTWISE = words("""
add sub mul div exp log sqrt rsqrt pow sigmoid tanh erf relu gelu silu mish softplus clamp clamp_min clamp_max hardtanh
leaky_relu elu neg abs sin cos reciprocal square maximum minimum hardswish hardsigmoid log1p expm1 addcmul rsub atan
sinh asinh lerp softshrink selu celu xlogy log2 floor
""")
APPROXIMATED = SPECIAL | words("gelu silu mish sqrt div reciprocal elu selu logcumsumexp")
PRODUCTS = ("mm", "bmm", "addmm")
PICKS = words("amax amin max min argmax argmin topk sort median nanmedian kthvalue mode")
POOLS = words("""
max_pool1d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d
avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
""")
SCANS = words("cumsum cumprod cummax cummin logcumsumexp")
MOVES = words("""
index index_select gather take embedding flip roll repeat cat constant_pad_nd reflection_pad1d reflection_pad2d
reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col col2im upsample_nearest1d
upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle channel_shuffle tril triu max_unpool2d max_unpool3d
""")
TILE = 16

Alteration = Callable[[str, Any, Any, Any], Any]  # (name, op, args, kwargs) -> the wrong result, or None
KINDS: dict[str, Alteration] = {}


def kind(about: str) -> Callable[[Alteration], Alteration]:
    """Register what a mutant does to an op, described by `about`."""

    def put(made: Alteration) -> Alteration:
        KINDS[about] = made
        return made

    return put


@dataclass(frozen=True)
class Mutant:
    """One op of a run altered: the `index` of the op among all, its name, and what is done to it."""

    index: int
    op: str
    kind: str

    @property
    def narrow(self) -> bool:
        """Whether it computes in a lower precision, and is right else."""
        return self.kind in NARROW

    def __str__(self) -> str:
        return f"{self.kind} ({self.op})"


class Altered(Mode):
    """Runs a function with one op altered; ops that torch decomposes are run so, for their parts to be altered too."""

    def __init__(self, mutant: Mutant | None = None):
        super().__init__()
        self.mutant, self.found = mutant, list[Mutant]()
        self._count = itertools.count()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name, index = kwargs or {}, name_of(func), next(self._count)
        if self.mutant is None:
            self._look(index, name, func, args, kwargs)
        elif (index, name) == (self.mutant.index, self.mutant.op):
            made = KINDS[self.mutant.kind](name, func, args, kwargs)
            if made is not None:
                return made
        made = NotImplemented if name in DOTS or name in EXACT else in_parts(self, func, args, kwargs)
        return func(*args, **kwargs) if made is NotImplemented else made

    def _look(self, index, name, func, args, kwargs):
        if not number_leaves((args, kwargs)) or func._schema.is_mutable:
            return
        for about, alter in KINDS.items():
            try:
                applies = alter(name, func, args, kwargs) is not None
            except (RuntimeError, IndexError, TypeError, ValueError):
                applies = False  # a form of the op that the alteration does not know
            if applies:
                self.found.append(Mutant(index, name, about))


def mutants_of(function: Callable[..., Any], values: Sequence[Any]) -> list[Mutant]:
    """Every mutant of `function`, as it runs on these values."""
    mode = Altered()
    with torch.no_grad(), without_onednn(), mode:
        function(*cast(values, torch.float32))
    return mode.found


def spread(mutants: Sequence[Mutant], number: int) -> list[Mutant]:
    """So many of them, as different in kind as they come."""
    by_kind: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_kind.setdefault(mutant.kind, []).append(mutant)
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_kind.values()))
    return [mutant for mutant in turns if mutant is not None][:number]


def _cut(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if x.is_complex():
        return torch.complex(_cut(x.real, dtype), _cut(x.imag, dtype))
    return x.to(dtype).to(x.dtype)


@kind("the last term of a sum is left out")
def _tail(name, func, args, kwargs):
    x = args[0]
    if name in PRODUCTS and args[-1].shape[-2] > 1:
        return func(*args[:-2], args[-2][..., :-1], args[-1][..., :-1, :], **kwargs)
    if name == "convolution":
        weight = args[1].clone()
        weight[:, -1] = 0
        if weight.shape[1] == 1:
            weight = args[1].clone()
            weight[..., -1] = 0
        return func(x, weight, *args[2:])
    if name in ("sum", "mean") and x.numel() > 1 and x.ndim:
        dim = argument(func, "dim", args, kwargs) or [-1]
        y = x.clone()
        y.select(dim if isinstance(dim, int) else dim[-1], -1).zero_()
        return func(y, *args[1:], **kwargs)
    if name in PICKS and x.ndim and (len(args) < 2 or not isinstance(args[1], torch.Tensor)):
        dim = argument(func, "dim", args, kwargs)
        dim = dim if isinstance(dim, int) else (dim or [-1])[-1]
        if x.shape[dim] > 1:
            y = x.clone()
            y.select(dim, -1).copy_(y.select(dim, 0))
            return func(y, *args[1:], **kwargs)
    return None


def _accumulated(dtype: torch.dtype) -> Alteration:
    def alter(name, func, args, kwargs):
        x = args[0]
        if name in PRODUCTS and not kwargs:
            a, b = args[-2:]
            if a.shape[-1] <= TILE:
                return None
            total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
            for start in range(0, a.shape[-1], TILE):
                total = _cut(total + a[..., start : start + TILE] @ b[..., start : start + TILE, :], dtype)
            return total + x if name == "addmm" else total
        if name in ("sum", "mean") and x.ndim:
            dim = argument(func, "dim", args, kwargs)
            dims = list(range(x.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
            n = reduced(x, dims)
            if n <= TILE:
                return None
            y, step = terms_last(x, dims), max(TILE, n // 64)
            total = torch.zeros(y.shape[:-1], dtype=x.dtype)
            for start in range(0, n, step):
                total = _cut(total + y[..., start : start + step].sum(-1), dtype)
            total = total / n if name == "mean" else total
            return as_reduced(total, x, dims, argument(func, "keepdim", args, kwargs))
        if name == "convolution" and not args[6] and args[8] == 1 and args[1].shape[1] > 1:
            return by_channels(func, args, lambda part: _cut(part, dtype))
        return None

    return alter


kind("the accumulator is bfloat16")(_accumulated(torch.bfloat16))
kind("the accumulator is float16")(_accumulated(torch.float16))


@kind("operands of a dot product are rounded to tf32")
def _tf32(name, func, args, kwargs):
    if name not in (*PRODUCTS, "convolution") or args[0].dtype != torch.float32:
        return None

    def cut(t):
        return ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    places = (0, 1) if name == "convolution" else (len(args) - 2, len(args) - 1)
    return func(*(cut(t) if place in places else t for place, t in enumerate(args)), **kwargs)


def _stored(dtype: torch.dtype) -> Alteration:
    def alter(name, func, args, kwargs):
        if name in EXACT or func.is_view:
            return None
        out = func(*args, **kwargs)
        return tree_map(lambda t: _cut(t, dtype) if is_number(t) else t, out) if number_leaves(out) else None

    return alter


NARROW = frozenset(
    (
        "the accumulator is bfloat16",
        "the accumulator is float16",
        "operands of a dot product are rounded to tf32",
        "the result of an op passes through bfloat16",
        "the result of an op passes through float16",
        "a function is approximated, 2^-11 off",
    )
)
kind("the result of an op passes through bfloat16")(_stored(torch.bfloat16))
kind("the result of an op passes through float16")(_stored(torch.float16))


@kind("a function is approximated, 2^-11 off")
def _approximated(name, func, args, kwargs):
    if name not in APPROXIMATED:
        return None
    out = func(*args, **kwargs)
    return out * (1 + 2.0**-11 * torch.sin(out * 1e4)) if is_float(out) else None


@kind("an op is left out")
def _left_out(name, func, args, kwargs):
    if name not in ELEMENTWISE:
        return None
    out, first = func(*args, **kwargs), float_leaves(args)[0]
    return first.expand(out.shape).clone() if is_float(out) else None


@kind("a number in the code is 1 % off")
def _number(name, func, args, kwargs):
    if name in ("native_layer_norm", "native_group_norm", "native_batch_norm"):
        return func(*args[:-1], args[-1] * 10, **kwargs)  # eps
    if name not in ELEMENTWISE:
        return None
    for place, value in enumerate(args):
        scalar = isinstance(value, float) and math.isfinite(value) and value != 0
        if scalar or (is_float(value) and value.ndim == 0 and name in ("add", "mul", "div", "sub")):
            return func(*args[:place], value * 1.01, *args[place + 1 :], **kwargs)
    return None


@kind("the sign of an operand is wrong")
def _sign(name, func, args, kwargs):
    if name in ("add", "sub") and len(args) > 1 and is_float(args[1]):
        return func(args[0], -args[1], *args[2:], **kwargs)
    return None


@kind("of equal elements the last is picked")
def _last_of_equal(name, func, args, kwargs):
    dim = argument(func, "dim", args, kwargs) if name in ("argmax", "argmin") else None
    if dim is None or not args[0].ndim:
        return None
    return args[0].shape[dim] - 1 - func(args[0].flip(dim), *args[1:], **kwargs)


@kind("the variance is computed in one pass, E[x^2] - E[x]^2")
def _one_pass(name, func, args, kwargs):
    def rstd_of(x, dims, eps):
        mean = x.mean(dims, keepdim=True)
        return mean, torch.rsqrt(((x * x).mean(dims, keepdim=True) - mean * mean).clamp_min(0) + eps)

    if name == "native_layer_norm":
        x, shape, weight, bias, eps = args
        mean, rstd = rstd_of(x, list(range(x.ndim - len(shape), x.ndim)), eps)
        return _affine((x - mean) * rstd, weight, bias, list(x.shape[-len(shape) :])), mean, rstd
    if name == "native_group_norm":
        x, weight, bias, batch, channels, _, groups, eps = args
        y = x.reshape(batch, groups, -1)
        mean, rstd = rstd_of(y, -1, eps)
        y = _affine(((y - mean) * rstd).reshape(batch, channels, -1), weight, bias, [1, -1, 1])
        return y.reshape(x.shape), mean.reshape(batch, groups), rstd.reshape(batch, groups)
    if name == "native_batch_norm" and args[5]:
        x, weight, bias = args[:3]
        mean, rstd = rstd_of(x, [d for d in range(x.ndim) if d != 1], args[-1])
        y = _affine((x - mean) * rstd, weight, bias, [1, -1] + [1] * (x.ndim - 2))
        return y, mean.reshape(-1), rstd.reshape(-1)
    if name in ("var", "var_mean") and argument(func, "dim", args, kwargs):
        x, dims, keep = args[0], argument(func, "dim", args, kwargs), argument(func, "keepdim", args, kwargs, False)
        n, mean = reduced(x, dims), x.mean(dims, keepdim=keep)
        correction = argument(func, "correction", args, kwargs)
        correction = int(argument(func, "unbiased", args, kwargs, True)) if correction is None else correction
        v = ((x * x).mean(dims, keepdim=keep) - mean * mean).clamp_min(0) * (n / max(n - correction, 1))
        return (v, mean) if name == "var_mean" else v
    return None


def _affine(y, weight, bias, shape):
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


@kind("a variance or mean is divided by n - 1 for n, or by n for n - 1")
def _bessel(name, func, args, kwargs):
    if name in ("var", "var_mean", "std") and "correction" in kwargs:
        return func(*args, **{**kwargs, "correction": 0 if kwargs["correction"] in (1, None) else 1})
    if name == "native_layer_norm" and (n := math.prod(args[1])) > 1:
        x, shape, weight, bias, eps = args
        mean, rstd = normalized(x, list(range(x.ndim - len(shape), x.ndim)), eps)
        return _affine((x - mean) * rstd * math.sqrt((n - 1) / n), weight, bias, list(shape)), mean, rstd
    if name == "mean" and (n := reduced(args[0], argument(func, "dim", args, kwargs))) > 1:
        return func(*args, **kwargs) * (n / (n - 1))
    return None


@kind("the other form of an activation, by tanh for by erf")
def _other_form(name, func, args, kwargs):
    if name != "gelu":
        return None
    return func(args[0], approximate="none" if kwargs.get("approximate") == "tanh" else "tanh")


@kind("one element of a vector stands for all of it")
def _first_element(name, func, args, kwargs):
    def first(t):
        return t.flatten()[0].expand(t.shape).contiguous()

    place = {"addmm": 0, "convolution": 2, "native_layer_norm": 2, "native_group_norm": 1, "native_batch_norm": 1}
    if name in ("mul", "add") and len(args) > 1 and is_float(args[1]) and is_float(args[0]):
        return func(args[0], first(args[1]), *args[2:], **kwargs) if 1 < args[1].numel() < args[0].numel() else None
    at = place.get(name)
    if at is None or args[at] is None or args[at].numel() < 2:
        return None
    return func(*args[:at], first(args[at]), *args[at + 1 :], **kwargs)


@kind("a window or a scan is one short")
def _window(name, func, args, kwargs):
    if name in POOLS:
        return func(torch.roll(args[0], 1, -1), *args[1:], **kwargs)
    if name in SCANS and args[0].ndim and args[0].shape[args[1]] > 1:
        out = func(*args, **kwargs)
        for t in tensors_of(out):
            t.select(args[1], -1).copy_(t.select(args[1], -2).clone())
        return out
    return None


@kind("what is moved is read one place off")
def _one_off(name, func, args, kwargs):
    if name not in MOVES:
        return None
    first = args[0][-1] if name == "cat" else args[0]
    if not is_float(first) or not first.ndim or first.shape[-1] < 2:
        return None
    moved = torch.roll(first, 1, -1)
    return func([*args[0][:-1], moved] if name == "cat" else moved, *args[1:], **kwargs)
