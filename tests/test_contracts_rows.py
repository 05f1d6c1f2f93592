"""The contracts of the row-wise ops: every independent correct kernel passes, every planted fault is rejected.

Kernels here are torch functions in float32 (outputs are rounded to the op's dtypes afterwards), or, where marked
`native`, in the dtype of the inputs. `total` is how they sum: in any order, or in one of the wrong ways.
"""

import math
from functools import cache, partial

import pytest
import torch
from torch.nn import functional

from backends import shapes
from conformance import budget, generate, judge, registry

ALL, F32, F16, BF16 = ("float32", "float16", "bfloat16"), ("float32",), ("float16",), ("bfloat16",)
HALF = F16 + BF16


def _sum(t, dim=-1):
    return t.sum(dim, keepdim=True)


def _along_last(function):
    def total(t, dim=-1):
        return function(t.movedim(dim, -1)).unsqueeze(-1).movedim(-1, dim)

    return total


def _tiled(tile, dtype=torch.float32, reverse=False):
    """`tile` lanes that each add up their columns in `dtype`, then a tree over the lanes."""

    @_along_last
    def total(t):
        t = t.flip(-1) if reverse else t
        t = functional.pad(t, (0, -t.shape[-1] % tile)).to(dtype)
        lanes = t.new_zeros((*t.shape[:-1], tile))
        for start in range(0, t.shape[-1], tile):
            lanes = lanes + t[..., start : start + tile]
        while lanes.shape[-1] > 1:
            half = lanes.shape[-1] // 2
            lanes = lanes[..., :half] + lanes[..., half:]
        return lanes[..., 0].float()

    return total


@_along_last
def _in_sequence(t):
    found = t.new_zeros(t.shape[:-1])
    for column in t.unbind(-1):
        found = found + column
    return found


def _kept(columns):
    """The sum over the first `columns(n)` of n columns only."""
    return _along_last(lambda t: t[..., : columns(t.shape[-1])].sum(-1))


RIGHT_SUMS = {
    "tree": _sum,
    "32 lanes": _tiled(32),
    "reversed lanes": _tiled(8, reverse=True),
    "256 lanes": _tiled(256),
    "one lane": _in_sequence,
}
WRONG_SUMS = {
    "drops the last column": (_kept(lambda n: n - 1), ALL),
    "drops the partial tile": (_kept(lambda n: n // 32 * 32), ALL),
    "first 1024 columns only": (_kept(lambda n: min(n, 1024)), ALL),
    "first 4096 columns only": (_kept(lambda n: min(n, 4096)), ALL),
    "fp16 accumulator": (_tiled(32, torch.float16), F32 + F16),
    "bf16 accumulator": (_tiled(32, torch.bfloat16), ALL),
}


def _map(function, outputs):
    return tuple(map(function, outputs)) if isinstance(outputs, tuple) else function(outputs)


def _inputs_through(convert, fn):
    return lambda **a: fn(**{n: convert(v) if isinstance(v, torch.Tensor) else v for n, v in a.items()})


def _outputs_through(convert, fn):
    return lambda **a: _map(convert, fn(**a))


def _tf32(t):
    rounded = ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(t), rounded, t)


def _native(fn):
    fn.native = True
    return fn


def _truncated(fn):
    """Store the result with its low bits cut off."""

    @_native
    def call(**a):
        dtype = next(iter(a.values())).dtype
        wide = fn(**_float32(a))

        def store(y):
            near = y.to(dtype)
            beyond = (near.float().abs() > y.abs()) & torch.isfinite(near)
            return torch.where(beyond, (near.view(torch.int16) - 1).view(dtype), near)

        return _map(store, wide)

    return call


def _float32(arguments):
    return {n: v.float() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


def _wrong_in_any_op(make):
    right = make(_sum)
    return {
        **{name: (make(total), dtypes) for name, (total, dtypes) in WRONG_SUMS.items()},
        "zeros": (_outputs_through(torch.zeros_like, right), ALL),
        "nothing written": (_outputs_through(lambda y: torch.full_like(y, math.nan), right), ALL),
        "TF32 inputs": (_inputs_through(_tf32, right), F32),
        "bf16 inputs": (_inputs_through(lambda t: t.bfloat16().float(), right), F32 + F16),
        "result through fp16": (_outputs_through(lambda y: y.half().float(), right), F32),
        "result through bf16": (_outputs_through(lambda y: y.bfloat16().float(), right), F32 + F16),
        "truncated result": (_truncated(right), HALF),
        "NaN swallowed": (_outputs_through(lambda y: y.nan_to_num(0.0), right), ALL),
    }


def _everywhere(faults):
    return {name: (fn, ALL) for name, fn in faults.items()}


def _top(x):
    return x.amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((x.shape[0], 1))


def _softmax(x, total=_sum, top=_top, exp=torch.exp):
    e = exp(x - top(x))
    return e / total(e)


def _softmax_exp2(x):
    scaled = x * math.log2(math.e)
    p = torch.exp2(scaled - _top(scaled))
    return p * (1 / p.sum(-1, keepdim=True))


def _online(x, tile=16, rescale=True, guard=True):
    """y and lse from a running maximum and sum over tiles of columns."""
    m, total = x.new_full((x.shape[0], 1), -math.inf), x.new_zeros((x.shape[0], 1))
    for part in x.split(tile, -1) if x.shape[-1] else ():
        new = torch.maximum(m, _top(part))
        shift = torch.where(torch.isneginf(new), 0.0, new) if guard else new
        total = total * torch.exp(m - shift) if rescale else total
        total = total + torch.exp(part - shift).sum(-1, keepdim=True)
        m = new
    lse = m + torch.log(total)
    lse = torch.where(torch.isposinf(m), m, lse)
    return torch.exp(x - m) / total, lse[:, 0]


def _padded(x, to, value):
    return functional.pad(x, (0, -x.shape[-1] % to), value=value)


def _padding_counts(x):
    padded = _padded(x, 32, 0.0)
    return _softmax(padded)[:, : x.shape[-1]]


def _finite_mask(x):
    return torch.softmax(x.clamp_min(-1e30), -1)


def _zeros_where_all_masked(x):
    return torch.softmax(x, -1).masked_fill(x.isneginf().all(-1, keepdim=True), 0.0)


SOFTMAX_FAULTS = {
    **_wrong_in_any_op(lambda total: partial(_softmax, total=total)),
    "identity": (lambda x: x, ALL),
    "no max subtraction": (partial(_softmax, top=torch.zeros_like), ALL),
    "maximum of the first tile": (partial(_softmax, top=lambda x: _top(x[:, :64])), ALL),
    "maximum of row 0": (partial(_softmax, top=lambda x: _top(x)[:1]), ALL),
    "maximum of the previous row": (partial(_softmax, top=lambda x: _top(x).roll(1, 0)), ALL),
    "sum of the previous row": (partial(_softmax, total=lambda e: _sum(e).roll(1, 0)), ALL),
    "padding counts as 0": (_padding_counts, ALL),
    "no rescaling": (lambda x: _online(x, rescale=False)[0], ALL),
    "no guard for leading -inf": (lambda x: _online(x, guard=False)[0], ALL),
    "finite mask": (_finite_mask, ALL),
    "row of -inf gives 0": (_zeros_where_all_masked, ALL),
    "maximum ignores NaN": (lambda x: _softmax(torch.where(x.isnan(), -math.inf, x)), ALL),
    "over rows": (lambda x: torch.softmax(x, 0), ALL),
    "denominator + 1e-6": (lambda x: _softmax(x, total=lambda e: _sum(e) + 1e-6), F32),
    "exponents clamped at -20": (partial(_softmax, exp=lambda t: t.clamp_min(-20).exp()), F32 + BF16),
    "log softmax": (lambda x: torch.log_softmax(x, -1), ALL),
}
SOFTMAX_CONTROLS = {
    **{f"sum by {name}": partial(_softmax, total=total) for name, total in RIGHT_SUMS.items()},
    "torch": lambda x: torch.softmax(x, -1),
    "torch in the inputs' dtype": _native(lambda x: torch.softmax(x, -1)),
    "exp2": _softmax_exp2,
    "online, tiles of 16": lambda x: _online(x)[0],
    "online, tiles of 1000": lambda x: _online(x, 1000)[0],
    "from log softmax": lambda x: torch.exp(torch.log_softmax(x.double(), -1)).float(),
}


def _with_lse(y):
    """The softmax in `y`, fault or not, beside a right lse."""
    if getattr(y, "native", False):
        return _native(lambda x: (y(x=x), torch.logsumexp(x.float(), -1)))
    return lambda x: (y(x=x), torch.logsumexp(x, -1))


def _lse_fault(lse):
    return lambda x: (torch.softmax(x, -1), lse(x, torch.logsumexp(x, -1)))


ONLINE_FAULTS = {
    **{name: (_with_lse(fn), dtypes) for name, (fn, dtypes) in SOFTMAX_FAULTS.items()},
    "no rescaling": (partial(_online, rescale=False), ALL),
    "no guard for leading -inf": (partial(_online, guard=False), ALL),
    **_everywhere({
        "lse to base 2": _lse_fault(lambda x, lse: lse / math.log(2)),
        "lse without the maximum": _lse_fault(lambda x, lse: lse - _top(x)[:, 0]),
        "lse is the maximum": _lse_fault(lambda x, lse: _top(x)[:, 0]),
        "lse is the sum": _lse_fault(lambda x, lse: lse.exp()),
        "lse in fp16": _lse_fault(lambda x, lse: lse.half().float()),
        "lse in bf16": _lse_fault(lambda x, lse: lse.bfloat16().float()),
        "lse of a row of -inf is NaN": _lse_fault(lambda x, lse: torch.where(lse.isneginf(), math.nan, lse)),
        "lse of a row of -inf is finite": _lse_fault(lambda x, lse: lse.clamp_min(-1e30)),
        "lse of a row with +inf is NaN": _lse_fault(lambda x, lse: torch.where(lse.isposinf(), math.nan, lse)),
        "lse swallows NaN": _lse_fault(lambda x, lse: torch.logsumexp(torch.where(x.isnan(), -math.inf, x), -1)),
        "lse drops the last column": _lse_fault(lambda x, lse: torch.logsumexp(x[:, :-1], -1)),
        "lse of the previous row": _lse_fault(lambda x, lse: lse.roll(1, 0)),
    }),
}  # fmt: skip
ONLINE_CONTROLS = {
    **{name: _with_lse(fn) for name, fn in SOFTMAX_CONTROLS.items()},
    "tiles of 16": _online,
    "tiles of 1000": partial(_online, tile=1000),
    "one column at a time": lambda x: _online(x, 1) if x.shape[-1] < 100 else _online(x, 7),
}


def _softmax_backward(y, dy, total=_sum, delta=lambda d: d):
    return y * (dy - delta(total(y * dy)))


SOFTMAX_BACKWARD_FAULTS = {
    **_wrong_in_any_op(lambda total: partial(_softmax_backward, total=total)),
    **_everywhere({
        "identity": lambda y, dy: dy,
        "no delta": lambda y, dy: y * dy,
        "delta of the previous row": partial(_softmax_backward, delta=lambda d: d.roll(1, 0)),
        "delta is the sum of dy": lambda y, dy: y * (dy - _sum(dy)),
        "delta is the sum of y²·dy": lambda y, dy: y * (dy - _sum(y * y * dy)),
        "delta is a mean": lambda y, dy: y * (dy - (y * dy).sum(-1, keepdim=True) / max(y.shape[-1], 1)),
        "delta over rows": lambda y, dy: y * (dy - _sum(y * dy, 0)),
        "y left out": lambda y, dy: dy - _sum(y * dy),
        "y squared": lambda y, dy: y * y * (dy - _sum(y * dy)),
        "sign": lambda y, dy: -_softmax_backward(y, dy),
        "dy and y change places": lambda y, dy: _softmax_backward(dy, y),
        "of log softmax": lambda y, dy: dy - y * _sum(dy),
    }),
    "delta in bf16": (partial(_softmax_backward, delta=lambda d: d.bfloat16().float()), ALL),
    "delta in fp16": (partial(_softmax_backward, delta=lambda d: d.half().float()), F32 + F16),
}  # fmt: skip
SOFTMAX_BACKWARD_CONTROLS = {
    **{f"sum by {name}": partial(_softmax_backward, total=total) for name, total in RIGHT_SUMS.items()},
    "multiplied out": lambda y, dy: torch.addcmul(y * dy, y, -_sum(y * dy)),
    "torch": lambda y, dy: torch._softmax_backward_data(dy, y, -1, torch.float32),
}


def _variance(x, mean, total):
    return total((x - mean).square()) / x.shape[-1]


def _one_pass(x, mean, total):
    return total(x * x) / x.shape[-1] - mean * mean


def _unbiased(x, mean, total):
    return total((x - mean).square()) / (x.shape[-1] - 1)


def _pad_lanes(x, mean, total):
    return _variance(x, mean, total) + (-x.shape[-1] % 32) / max(x.shape[-1], 1) * mean.square()


def _root(variance, eps):
    return (variance + eps).rsqrt()


def _normalised(x, eps, centred=True, total=_sum, variance=_variance, rstd=_root, stat=lambda s: s):
    mean = stat(total(x) / x.shape[-1]) if centred else x.new_zeros((*x.shape[:-1], 1))
    return (x - mean) * stat(rstd(variance(x, mean, total), eps))


def _welford(x, eps, tile=8):
    """Chan's merge of the statistics of tiles of columns."""
    n, mean, m2 = 0, x.new_zeros((*x.shape[:-1], 1)), x.new_zeros((*x.shape[:-1], 1))
    for part in x.split(tile, -1) if x.shape[-1] else ():
        more = part.shape[-1]
        other = part.mean(-1, keepdim=True)
        delta = other - mean
        m2 = m2 + (part - other).square().sum(-1, keepdim=True) + delta.square() * (n * more / (n + more))
        mean, n = mean + delta * (more / (n + more)), n + more
    return (x - mean) / torch.sqrt(m2 / max(n, 1) + eps)


def _wrong_normalisers(centred):
    """name -> (x, eps -> x̂, the dtypes in which it is a fault)."""
    hat = partial(_normalised, centred=centred)
    found = {
        **{name: (partial(hat, total=total), dtypes) for name, (total, dtypes) in WRONG_SUMS.items()},
        "unbiased variance": (partial(hat, variance=_unbiased), ALL),
        "eps outside the root": (partial(hat, rstd=lambda v, eps: 1 / (v.sqrt() + eps)), ALL),
        "eps left out": (partial(hat, rstd=lambda v, eps: v.rsqrt()), ALL),
        "eps squared": (partial(hat, rstd=lambda v, eps: (v + eps * eps).rsqrt()), ALL),
        "eps is a lower limit": (partial(hat, rstd=lambda v, eps: v.clamp_min(eps).rsqrt()), ALL),
        "eps always 1e-5": (partial(hat, rstd=lambda v, eps: (v + 1e-5).rsqrt()), ALL),
        "eps always 1e-6": (partial(hat, rstd=lambda v, eps: (v + 1e-6).rsqrt()), ALL),
        "eps added twice": (partial(hat, rstd=lambda v, eps: (v + 2 * eps).rsqrt()), ALL),
        "no root": (partial(hat, rstd=lambda v, eps: 1 / (v + eps)), ALL),
        "statistics in fp16": (partial(hat, stat=lambda s: s.half().float()), F32 + F16),
        "statistics in bf16": (partial(hat, stat=lambda s: s.bfloat16().float()), ALL),
        "statistics of the previous row": (partial(hat, stat=lambda s: s.roll(1, 0)), ALL),
        "statistics of the first row": (partial(hat, stat=lambda s: s[:1].expand_as(s)), ALL),
        "statistics ignore NaN": (lambda x, eps: hat(torch.where(x.isnan(), 0.0, x), eps) + 0 * x, ALL),
    }
    if centred:
        found["mean not subtracted"] = (partial(_normalised, centred=False), ALL)
        found["one-pass variance"] = (partial(hat, variance=_one_pass), F32 + F16)
        found["padding counts in the variance"] = (partial(hat, variance=_pad_lanes), ALL)
        found["one-pass variance, clamped"] = (
            partial(hat, variance=lambda *a: _one_pass(*a).clamp_min(0)), F32 + F16,
        )  # fmt: skip
    else:
        found["mean subtracted"] = (_normalised, ALL)
        found["variance for the mean square"] = (
            lambda x, eps: x * _normalised(x, eps) / (x - x.mean(-1, keepdim=True)), ALL,
        )  # fmt: skip
    return found


def _right_normalisers(centred):
    hat = partial(_normalised, centred=centred)
    found = {f"sums by {name}": partial(hat, total=total) for name, total in RIGHT_SUMS.items()}
    if centred:
        found["Welford"] = _welford
        found["Welford, wide tiles"] = partial(_welford, tile=512)
        found["shifted one pass"] = lambda x, eps: _normalised(x - x[..., :1], eps, variance=_one_pass)
    else:
        found["root, then division"] = lambda x, eps: x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return found


def _affine(hat, x, weight, bias, eps):
    y = hat(x, eps) * weight
    return y if bias is None else y + bias


def _layer_norm(hat, scale=lambda w: w, shift=lambda b: b):
    return lambda x, weight, bias, eps: _affine(hat, x, scale(weight), None if bias is None else shift(bias), eps)


def _rms_norm(hat, scale=lambda w: w):
    return lambda x, weight, eps: _affine(hat, x, scale(weight), None, eps)


def _group_norm(hat, scale=lambda w: w, shift=lambda b: b, grouping=lambda groups, channels: groups):
    def call(x, weight, bias, groups, eps):
        channel = (-1, *[1] * (x.ndim - 2))
        split = grouping(groups, x.shape[1])
        flat = x.reshape(x.shape[0], split, x[:1].numel() // split)
        y = hat(flat, eps).reshape(x.shape) * scale(weight).reshape(channel)
        return y if bias is None else y + shift(bias).reshape(channel)

    return call


def _interleaved_groups(x, weight, bias, groups, eps):
    """Channel c in group c % groups."""
    order = torch.arange(x.shape[1]).reshape(-1, groups).T.flatten()
    back = order.argsort()
    y = _group_norm(_normalised)(x[:, order], torch.ones_like(weight), None, groups, eps)[:, back]
    return _group_norm(lambda t, eps: t)(y, weight, bias, 1, eps)


def _weight_per_group(x, weight, bias, groups, eps):
    """weight[group] for weight[channel]."""
    picked = torch.arange(weight.numel()) // (weight.numel() // groups)
    return _group_norm(_normalised)(x, weight[picked], bias, groups, eps)


def _weight_per_position(x, weight, bias, groups, eps):
    """weight[position % C] for weight[channel]: channels taken for the last axis."""
    y = _group_norm(_normalised)(x, torch.ones_like(weight), None, groups, eps)
    position = torch.arange(math.prod(x.shape[1:])).reshape(x.shape[1:]) % x.shape[1]
    y = y * weight[position]
    return y if bias is None else y + bias.reshape(-1, *[1] * (x.ndim - 2))


def _on_sum(norm):
    """An add op out of a norm of h."""
    return lambda x, residual, **rest: (norm(x=x + residual, **rest), x + residual)


def _on_rounded_sum(norm, hat_rounded=False):
    @_native
    def call(x, residual, **rest):
        h = x + residual
        return norm(x=h.float(), **_float32(rest)), h

    return call


def _rounded_hat(norm):
    """x̂ is stored in the inputs' dtype before the weight comes in."""

    @_native
    def call(**a):
        dtype = next(iter(a.values())).dtype
        hat = partial(_normalised, centred=False)
        return norm(lambda x, eps: hat(x, eps).to(dtype).float())(**_float32(a))

    return call


def _norm_faults(norm, centred):
    """The faults of a forward norm; `norm(hat, scale, shift)` makes the op out of a normaliser."""
    hat = partial(_normalised, centred=centred)
    right = norm(hat)
    found = {
        **_wrong_in_any_op(lambda total: norm(partial(hat, total=total))),
        **{name: (norm(wrong), dtypes) for name, (wrong, dtypes) in _wrong_normalisers(centred).items()},
        "identity": (_outputs_through(lambda y: y, lambda **a: right(**a) * 0 + a["x"]), ALL),
        "weight ignored": (norm(hat, scale=torch.ones_like), ALL),
        "first weight for all": (norm(hat, scale=lambda w: w[:1].expand_as(w)), ALL),
        "1 + weight": (norm(hat, scale=lambda w: 1 + w), ALL),
        "weight off by one": (norm(hat, scale=lambda w: w.roll(1)), ALL),
    }
    if centred:
        found["bias ignored"] = (norm(hat, shift=torch.zeros_like), ALL)
        found["bias off by one"] = (norm(hat, shift=lambda b: b.roll(1)), ALL)
    return found


def _add_faults(norm, plain_faults, right):
    found = {name: (_on_sum(fn), dtypes) for name, (fn, dtypes) in plain_faults.items() if not hasattr(fn, "native")}

    def of(y, h):
        def call(x, residual, **rest):
            s = x + residual
            return right(x=y(x, residual, s), **rest), h(x, residual, s)

        return call

    both = lambda x, r, s: s  # noqa: E731
    return {
        **found,
        **_everywhere({
            "y without the residual": of(lambda x, r, s: x, both),
            "y of the residual": of(lambda x, r, s: r, both),
            "h without the residual": of(both, lambda x, r, s: x),
            "h is the difference": of(lambda x, r, s: x - r, lambda x, r, s: x - r),
            "h is written after the norm": lambda **a: (_on_sum(right)(**a)[0],) * 2,
            "h drops the last column": of(both, lambda x, r, s: torch.cat([s[:, :-1], 0 * s[:, -1:]], -1)),
        }),
        "h in fp16": (of(lambda x, r, s: s.half().float(), lambda x, r, s: s.half().float()), F32),
        "h in bf16": (of(lambda x, r, s: s.bfloat16().float(), lambda x, r, s: s.bfloat16().float()), F32 + F16),
        "truncated h": (_truncated(of(both, both)), HALF),
    }  # fmt: skip


LAYER_NORM_FAULTS = _norm_faults(_layer_norm, True)
LAYER_NORM_CONTROLS = {
    **{name: _layer_norm(hat) for name, hat in _right_normalisers(True).items()},
    "torch": lambda x, weight, bias, eps: functional.layer_norm(x, weight.shape, weight, bias, eps),
    "torch in the inputs' dtype": _native(
        lambda x, weight, bias, eps: (
            functional.layer_norm(x, weight.shape, weight, bias, eps) if weight.numel() else x.clone()
        )
    ),
}
RMS_NORM_FAULTS = _norm_faults(_rms_norm, False)
RMS_NORM_CONTROLS = {
    **{name: _rms_norm(hat) for name, hat in _right_normalisers(False).items()},
    "normalised rows stored": _rounded_hat(_rms_norm),
    "torch": lambda x, weight, eps: functional.rms_norm(x, weight.shape, weight, eps),
}
GROUP_NORM_FAULTS = {
    **_norm_faults(_group_norm, True),
    **_everywhere({
        "groups ignored": _group_norm(_normalised, grouping=lambda groups, channels: 1),
        "every channel its own group": _group_norm(_normalised, grouping=lambda groups, channels: channels),
        "groups interleaved": _interleaved_groups,
        "weight per group": _weight_per_group,
        "weight per position": _weight_per_position,
    }),
}  # fmt: skip
GROUP_NORM_CONTROLS = {
    **{name: _group_norm(hat) for name, hat in _right_normalisers(True).items()},
    "torch": lambda x, weight, bias, groups, eps: (
        functional.group_norm(x.contiguous(), groups, weight, bias, eps)
        if x[:1].numel() > groups and x.numel()
        else _group_norm(_normalised)(x, weight, bias, groups, eps)
    ),
}


def _backward(
    x, weight, dy, eps, mean=None, rstd=None, centred=True, total=_sum, over_rows=_sum, hat=None,
    g=lambda dy, w: dy * w, mean_g=1.0, mean_gx=1.0, stored=lambda t: t, given=True,
):  # fmt: skip
    """dx, dweight, dbias; the keywords are what the faults change."""
    n = x.shape[-1]
    if not centred:
        mean = x.new_zeros(x.shape[0])
    elif mean is None or not given:
        mean = total(x)[:, 0] / n
    centre = x - mean[:, None]
    if rstd is None or not given:
        rstd = (total(centre.square())[:, 0] / n + eps).rsqrt()
    r = rstd[:, None]
    xhat = stored(hat(x, eps) if hat else centre * r)
    grad = g(dy, weight)
    dx = r * (grad - xhat * (mean_gx * total(grad * xhat) / n) - (mean_g * total(grad) / n if centred else 0))
    return dx, over_rows(dy * xhat, 0)[0], over_rows(dy, 0)[0]


def _split_rows(parts):
    """Partial sums of dweight over `parts` of the rows, added up."""

    def total(t, dim):
        return torch.stack([part.sum(dim, keepdim=True) for part in t.chunk(parts, dim)]).sum(0)

    return total


def _backward_faults(centred):
    pick = (lambda out: out) if centred else (lambda out: out[:2])

    def make(**changed):
        return lambda **a: pick(_backward(**a, centred=centred, **changed))

    def after(change):
        return lambda **a: change(*pick(_backward(**a, centred=centred)), a)

    sums_over_rows = {
        f"over rows: {name}": (make(over_rows=total), found) for name, (total, found) in WRONG_SUMS.items()
    }
    wrong = _wrong_normalisers(centred)
    unsaid = ("drops", "first", "accumulator")
    hats = {
        f"rows: {name}": (make(hat=hat, given=False), dtypes)
        for name, (hat, dtypes) in wrong.items()
        if not any(word in name for word in unsaid)
    }
    for name in ("rows: statistics ignore NaN", "rows: padding counts in the variance"):
        hats.pop(name, None)
    faults = {
        **_wrong_in_any_op(lambda total: make(total=total, given=False)),
        **sums_over_rows,
        **hats,
        **_everywhere({
            "dx is dy": after(lambda dx, dw, *rest: (rest[-1]["dy"], dw, *rest[:-1])),
            "dx without the last term": make(mean_gx=0.0),
            "last term of dx twice": make(mean_gx=2.0),
            "weight left out of g": make(g=lambda dy, w: dy),
            "first weight for all": make(g=lambda dy, w: dy * w[:1]),
            "dweight is a mean over rows": after(
                lambda dx, dw, *rest: (dx, dw / max(dx.shape[0], 1), *rest[:-1])
            ),
            "dweight of the last row": make(over_rows=lambda t, dim: t[-1:] if len(t) else t.sum(0, keepdim=True)),
            "dweight without the last row": make(over_rows=lambda t, dim: t[:-1].sum(0, keepdim=True)),
            "dweight from g": after(
                lambda dx, dw, *rest: (dx, dw * rest[-1]["weight"], *rest[:-1])
            ),
            "dy clipped": make(g=lambda dy, w: dy.clamp(-2, 2) * w),
            "dweight twice": after(lambda dx, dw, *rest: (dx, 2 * dw, *rest[:-1])),
        }),
        "normalised rows in bf16": (make(stored=lambda t: t.bfloat16().float()), F32 + F16 + (BF16 if centred else ())),
        "g in bf16": (make(g=lambda dy, w: (dy * w).bfloat16().float()), F32 + F16),
    }  # fmt: skip
    del faults["NaN swallowed"]  # no case has NaN
    if centred:
        faults.update(_everywhere({
            "dx without the mean of g": make(mean_g=0.0),
            "mean left out where given": lambda **a: _backward(**{**a, "mean": None if a["mean"] is None else 0 * a["mean"]}),
            "dweight and dbias change places": after(lambda dx, dw, db, a: (dx, db, dw)),
            "dbias from dx": after(lambda dx, dw, db, a: (dx, dw, dx.sum(0))),
        }))  # fmt: skip
    return faults


def _backward_controls(centred):
    pick = (lambda out: out) if centred else (lambda out: out[:2])

    def make(**changed):
        return lambda **a: pick(_backward(**a, centred=centred, **changed))

    controls = {f"sums by {name}": make(total=total, over_rows=total) for name, total in RIGHT_SUMS.items()}
    controls["statistics recomputed"] = make(given=False)
    controls["dweight in 5 parts"] = make(over_rows=_split_rows(5))
    return controls


def _through_autograd(norm, names):
    def call(x, weight, dy, eps, mean=None, rstd=None):
        leaves = [t.clone().requires_grad_() for t in (x, weight, *([torch.zeros_like(weight)] if names == 3 else []))]
        y = norm(leaves[0], weight.shape, *leaves[1:], eps=eps)
        y.backward(dy)
        return tuple(leaf.grad for leaf in leaves)

    return call


@_native
def _stored_hat_backward(x, weight, dy, eps, rstd=None):
    """The gradients of a forward that stores x̂ in the inputs' dtype: dy·weight is rounded too."""
    dx = _backward(x.float(), weight.float(), dy.float(), eps, centred=False, g=lambda *_: (dy * weight).float())[0]
    xhat = (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return dx, (dy.float() * xhat.float()).sum(0)


FAULTS = {
    "softmax": SOFTMAX_FAULTS,
    "online_softmax": ONLINE_FAULTS,
    "softmax_backward": SOFTMAX_BACKWARD_FAULTS,
    "layer_norm": LAYER_NORM_FAULTS,
    "rms_norm": RMS_NORM_FAULTS,
    "group_norm": GROUP_NORM_FAULTS,
    "layer_norm_backward": _backward_faults(True),
    "rms_norm_backward": _backward_faults(False),
    "add_layer_norm": _add_faults(_layer_norm, LAYER_NORM_FAULTS, _layer_norm(_normalised)),
    "add_rms_norm": _add_faults(_rms_norm, RMS_NORM_FAULTS, _rms_norm(partial(_normalised, centred=False))),
}
CONTROLS = {
    "softmax": SOFTMAX_CONTROLS,
    "online_softmax": ONLINE_CONTROLS,
    "softmax_backward": SOFTMAX_BACKWARD_CONTROLS,
    "layer_norm": LAYER_NORM_CONTROLS,
    "rms_norm": RMS_NORM_CONTROLS,
    "group_norm": GROUP_NORM_CONTROLS,
    "layer_norm_backward": {**_backward_controls(True), "autograd": _through_autograd(functional.layer_norm, 3)},
    "rms_norm_backward": {
        **_backward_controls(False),
        "autograd": _through_autograd(functional.rms_norm, 2),
        "normalised rows stored": _stored_hat_backward,
    },
    "add_layer_norm": {
        **{name: _on_sum(_layer_norm(hat)) for name, hat in _right_normalisers(True).items()},
        "norm of the rounded sum": _on_rounded_sum(_layer_norm(_normalised)),
    },
    "add_rms_norm": {
        **{name: _on_sum(_rms_norm(hat)) for name, hat in _right_normalisers(False).items()},
        "norm of the rounded sum": _on_rounded_sum(_rms_norm(partial(_normalised, centred=False))),
        "normalised rows stored": _rounded_hat(lambda hat: _on_sum(_rms_norm(hat))),
    },
}


@cache
def _prepared(op):
    contract = registry.contract(op)
    cases = generate.plan(contract, "default").cases
    built = [contract.build(case) for case in cases]
    return contract, [(inputs, contract.expected(inputs)) for inputs in built]


def _call(contract, fn, arguments, dtype):
    """The outputs of a kernel, rounded to the dtypes of the op's outputs."""
    got = fn(**(arguments if getattr(fn, "native", False) else _float32(arguments)))
    got = got if isinstance(got, tuple) else (got,)
    return tuple(t.to(out.dtype or dtype) for t, out in zip(got, contract.outputs.values(), strict=True))


def _verdicts(contract, inputs, expected, fn):
    case = inputs.case
    outputs = _call(contract, fn, inputs.arguments, case.torch_dtype)
    for (name, want), got in zip(expected.items(), outputs, strict=True):
        yield name, budget.compare(got, want, case.torch_dtype, exact=name in contract.exact.get(case.values, ()))


def _rejected(contract, inputs, expected, fn) -> bool:
    return any(not verdict.ok for _, verdict in _verdicts(contract, inputs, expected, fn))


@pytest.mark.parametrize("op", FAULTS)
def test_the_rounded_answer_passes(op):
    contract, prepared = _prepared(op)
    for inputs, expected in prepared:
        case = inputs.case
        for name, want in expected.items():
            got = want.answer.to(want.dtype or case.torch_dtype)
            shape = contract.shape(contract.outputs[name].axes, case.size)
            assert got.shape == shape
            verdict = budget.compare(got, want, case.torch_dtype, exact=name in contract.exact.get(case.values, ()))
            assert verdict.ok, f"{case.id}: {name}: {verdict.message}"


@pytest.mark.parametrize(("op", "name"), [(op, name) for op in FAULTS for name in CONTROLS[op]])
def test_correct_kernels_pass(op, name):
    contract, prepared = _prepared(op)
    for inputs, expected in prepared:
        outputs = _call(contract, CONTROLS[op][name], inputs.arguments, inputs.case.torch_dtype)
        for (output, want), got in zip(expected.items(), outputs, strict=True):
            exact = output in contract.exact.get(inputs.case.values, ())
            verdict = budget.compare(got, want, inputs.case.torch_dtype, exact)
            assert verdict.ok, f"{inputs.case.id}: {output}: {verdict.message}"
            assert verdict.fraction < 0.9, f"{inputs.case.id}: {output}: {verdict.fraction:.3f} of the budget"


@pytest.mark.parametrize("op", FAULTS)
def test_faults_are_rejected_and_every_family_rejects_some(op):
    contract, prepared = _prepared(op)
    survived, idle = [], set(contract.values)  # families that have rejected nothing yet go first
    for name, (fn, dtypes) in FAULTS[op].items():
        for dtype in dtypes:
            ordered = sorted(prepared, key=lambda pair: pair[0].case.values not in idle)
            for inputs, expected in ordered:
                if inputs.case.dtype == dtype and _rejected(contract, inputs, expected, fn):
                    idle.discard(inputs.case.values)
                    break
            else:
                survived.append(f"{name} in {dtype}")
    assert not survived
    assert not idle, "families that reject no fault"


@pytest.mark.parametrize("op", FAULTS)
def test_cases_are_enough_and_not_too_many(op):
    contract, prepared = _prepared(op)
    assert 60 <= len(prepared) <= 130
    assert 9 <= len(generate.plan(contract, "quick").cases) <= 18
    covered = {case.sizes for case in generate.plan(contract, "quick").cases}
    assert covered == {tuple(size.items()) for size in contract.sizes}
    for operand, spec in contract.operands.items():
        tried = {inputs.case.layout[operand] for inputs, _ in prepared}
        assert tried == set(spec.layouts)


@pytest.mark.parametrize("op", FAULTS)
def test_laws_hold_and_can_be_broken(op):
    contract, _ = _prepared(op)
    for law in contract.laws:
        broken = set()
        for dtype in contract.dtypes:
            case = judge.plain_case(contract, dtype, law.values)
            arguments = contract.build(case).arguments

            def check(fn, law=law, case=case, arguments=arguments):
                call = lambda **a: _call(contract, fn, a, case.torch_dtype)  # noqa: E731
                return law.check(call, arguments, call(**arguments), case)

            for name, fn in CONTROLS[op].items():
                assert check(fn) is None, f"{law.name}: {name} in {dtype}"
            broken |= {name for name, (fn, dtypes) in FAULTS[op].items() if dtype in dtypes and check(fn)}
        assert broken, f"{law.name}: no fault breaks it"


SPECS = {
    "softmax": "rows cols",
    "online_softmax": "rows cols",
    "softmax_backward": "rows cols, rows cols",
    "layer_norm": "rows cols, cols, cols?",
    "rms_norm": "rows cols, cols",
    "layer_norm_backward": "rows cols, cols, rows cols, rows:float32?, rows:float32?",
    "rms_norm_backward": "rows cols, cols, rows cols, rows:float32?",
    "group_norm": "N C ..., C, C?",
    "add_layer_norm": "rows cols, rows cols, cols, cols?",
    "add_rms_norm": "rows cols, rows cols, cols",
}


@pytest.mark.parametrize("op", FAULTS)
def test_invalid_calls_are_invalid_and_named(op):
    contract, prepared = _prepared(op)

    def launch(**arguments):
        shapes(SPECS[op], **{name: arguments[name] for name in contract.operands})
        groups = arguments.get("groups", 1)
        if groups < 1 or arguments["x" if "x" in arguments else "y"].shape[1] % groups:
            raise ValueError(f"groups: {groups} does not divide the channels")

    for inputs, _ in prepared:
        launch(**inputs.arguments)
    valid = contract.build(judge.plain_case(contract, "float32", "normal")).arguments
    for invalid in contract.invalid:
        with pytest.raises(invalid.error, match=invalid.match):
            launch(**invalid.spoil(valid))
