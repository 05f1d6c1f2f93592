"""Right versions of any function: other orders of summation, other forms of the same functions, in the dtype that the
function is run in. A budget that accuses one of them is not to be trusted."""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from touchstone.conformance.derived.ops import EXACT, Mode, argument, in_parts, is_float, name_of
from touchstone.conformance.derived.rules import reduced, terms_last

KINDS = ("eager", "tiles", "sequential", "permuted", "forms", "scale_shift")
LONGEST = 4096  # terms of a sum that is taken apart
L2E = math.log2(math.e)


class Form(Mode):
    """Runs a function with its ops replaced by others that are as right. `kind` is one of KINDS."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, name_of(func)
        made = None
        if self.kind != "eager" and args and is_float(args[0]) and args[0].numel():
            if self.kind == "scale_shift":
                made = SCALE_SHIFT[name](*args) if name in SCALE_SHIFT else None
            elif self.kind == "forms":
                made = OTHER[name](args, kwargs) if name in OTHER else None
            else:
                made = self._summed(func, name, args, kwargs)
            if made is not None:
                return made
            if self.kind != "scale_shift" and name not in EXACT:
                made = in_parts(self, func, args, kwargs)
                if made is not NotImplemented:
                    return made
        return func(*args, **kwargs)

    def _summed(self, func, name, args, kwargs):
        """A sum in tiles of 16, one term after another, or in an order drawn by chance."""
        x = args[0]
        if name in ("sum", "mean") and x.ndim and not kwargs.get("dtype"):
            return self._reduced(func, name, args, kwargs)
        if name in ("mm", "bmm", "addmm") and not kwargs:
            a, b = args[-2:]
            terms = a.shape[-1]
            step = max(16, terms // 64) if self.kind != "sequential" else max(1, terms // 512)
            order = self._order(terms)
            total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
            for start in range(0, terms, step):
                part = order[start : start + step]
                total = total + a[..., part] @ b[..., part, :]
            return total + x if name == "addmm" else total
        if name == "convolution" and not args[6] and args[8] == 1:
            return by_channels(func, args)
        return None

    def _reduced(self, func, name, args, kwargs):
        x, dim = args[0], argument(func, "dim", args, kwargs)
        dims = list(range(x.ndim)) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
        n = reduced(x, dims)
        if n > LONGEST or not n:
            return None
        y = terms_last(x, dims)[..., self._order(n)]
        step = 1 if self.kind == "sequential" else 16
        total = torch.zeros(y.shape[:-1], dtype=x.dtype)
        for start in range(0, n, step):
            total = total + y[..., start : start + step].sum(-1)
        return as_reduced(total / n if name == "mean" else total, x, dims, argument(func, "keepdim", args, kwargs))

    def _order(self, terms: int) -> torch.Tensor:
        if self.kind != "permuted":
            return torch.arange(terms)
        return torch.randperm(terms, generator=torch.Generator().manual_seed(0))


def as_reduced(total: torch.Tensor, x: torch.Tensor, dims: list[int], keepdim: Any) -> torch.Tensor:
    """A result without the axes `dims` of `x`, or with each of them 1 long."""
    dims = [d % x.ndim for d in dims]
    return total.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else total


def by_channels(func: Any, args: Any, between: Callable[[torch.Tensor], torch.Tensor] = lambda t: t) -> torch.Tensor:
    """A convolution as a sum over the channels of its input; `between` is done to every partial sum."""
    x, weight, bias = args[:3]
    parts = (func(x[:, c : c + 1], weight[:, c : c + 1], None, *args[3:]) for c in range(weight.shape[1]))
    total = functools.reduce(lambda total, part: between(total + part), parts)
    return total if bias is None else total + bias.reshape(1, -1, *[1] * (total.ndim - 2))


def normalized(x, dims, eps):
    mean = x.mean(dims, keepdim=True)
    return mean, torch.rsqrt(((x - mean) ** 2).mean(dims, keepdim=True) + eps)


def _layer(x, shape, weight, bias, eps):
    mean, rstd = normalized(x, list(range(x.ndim - len(shape), x.ndim)), eps)
    scale = rstd if weight is None else rstd * weight
    return x * scale + ((0.0 if bias is None else bias) - mean * scale), mean, rstd


def _group(x, weight, bias, batch, channels, rest, groups, eps):
    mean, rstd = normalized(x.reshape(batch, groups, -1), -1, eps)
    scale = torch.ones(channels, dtype=x.dtype) if weight is None else weight
    scale = rstd * scale.reshape(1, groups, -1)
    shift = (0.0 if bias is None else bias.reshape(1, groups, -1)) - mean * scale
    y = x.reshape(batch, channels, -1) * scale.reshape(batch, channels, 1) + shift.reshape(batch, channels, 1)
    return y.reshape(x.shape), mean.reshape(batch, groups), rstd.reshape(batch, groups)


def _batch(x, weight, bias, running, running_var, training, momentum, eps):
    dims, shape = [d for d in range(x.ndim) if d != 1], [1, -1] + [1] * (x.ndim - 2)
    if training:
        mean, rstd = normalized(x, dims, eps)
    else:
        mean, rstd = running.reshape(shape), torch.rsqrt(running_var + eps).reshape(shape)
    scale = rstd if weight is None else rstd * weight.reshape(shape)
    shift = (0.0 if bias is None else bias.reshape(shape)) - mean * scale
    y = x * scale + shift
    return (y, mean.reshape(-1), rstd.reshape(-1)) if training else (y, x.new_empty(0), x.new_empty(0))


SCALE_SHIFT: dict[str, Callable[..., Any]] = {
    "native_layer_norm": _layer,
    "native_group_norm": _group,
    "native_batch_norm": _batch,
    "_native_batch_norm_legit": _batch,
}


def _softplus(args, kwargs):
    x = args[0]
    return torch.where(x > 20, x, torch.log(1 + torch.exp(x.clamp_max(21)))) if len(args) == 1 and not kwargs else None


def _elu(args, kwargs):
    x = args[0]
    return torch.where(x > 0, x, torch.exp2(x * L2E) - 1.0) if len(args) == 1 and not kwargs else None


def _is_ordinary(x):
    return (x != 0) & torch.isfinite(x)


OTHER: dict[str, Callable[..., Any]] = {
    "exp": lambda args, kwargs: torch.exp2(args[0] * L2E),
    "log": lambda args, kwargs: torch.log2(args[0]) * math.log(2),
    "div": lambda args, kwargs: args[0] * (1.0 / args[1]) if not kwargs and is_float(args[1]) else None,
    "rsqrt": lambda args, kwargs: 1.0 / torch.sqrt(args[0]),
    "sqrt": lambda args, kwargs: torch.where(
        _is_ordinary(args[0]), args[0] * torch.rsqrt(args[0]), torch.sqrt(args[0])
    ),
    "sigmoid": lambda args, kwargs: 1.0 / (1.0 + torch.exp2(-args[0] * L2E)),
    "tanh": lambda args, kwargs: 2.0 / (1.0 + torch.exp2(-2 * args[0] * L2E)) - 1.0,
    "pow": lambda args, kwargs: args[0] * args[0] if isinstance(args[1], int | float) and args[1] == 2 else None,
    "elu": _elu,
    "softplus": _softplus,
    "log1p": lambda args, kwargs: torch.log(1 + args[0]),
    "expm1": lambda args, kwargs: torch.exp(args[0]) - 1,
}
