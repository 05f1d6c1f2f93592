"""layer_norm_backward(x, weight, dy): dx of (rows, cols), dweight and dbias of (cols,); mean and rstd may be given."""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.contracts._bounds_dots import summed
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import Expected
from touchstone.reference.layer_norm_backward import torch_layer_norm_backward


def expect(inputs, params, *, dtype, compute=None):
    """Statistics given or not, the answer is that of their exact values: the bound holds their rounding."""
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    cols = x.shape[1]
    answers = torch_layer_norm_backward(x, weight, dy, **params)
    s = bounds_rows.layer_statistics(x, params["eps"])
    g, normalised = (dy * weight).abs(), s.normalised.abs()
    along = (g * normalised).mean(-1, keepdim=True)
    direct = (1 + s.kappa) * (g + g.mean(-1, keepdim=True) + normalised * along)
    through = s.error * along + normalised * (g * s.error).mean(-1, keepdim=True)
    conditions = s.rstd * (direct + through), (dy.abs() * s.error).sum(0), dy.abs().sum(0)
    in_row = torch.maximum(bounds_rows.of_a_row(x), bounds_rows.of_a_row(g))
    over_rows = summed(dy * s.normalised, 0).clamp_min(cols)
    terms = in_row, over_rows, summed(dy, 0)
    return {
        name: Expected(answer, parts=[(count, condition)])
        for name, answer, count, condition in zip(("dx", "dweight", "dbias"), answers, terms, conditions, strict=True)
    }


def derive(inputs, params):
    x = inputs["x"]
    centred = x - x.mean(-1, keepdim=True)
    return {"mean": x.mean(-1), "rstd": (centred.square().mean(-1) + params["eps"]).rsqrt()}


def _sums_repeat(case) -> bool:
    return bounds_rows.repeats(case, "weight", "dy") or bounds_rows.repeats(case, "dy", axis="rows")


contract = _norms.gradient(expect, derive, _sums_repeat, centred=True)


def _forward(x, weight, bias, eps, **_):
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _liger(x, weight, bias, eps, **_):
    return common.liger_applied("layer_norm", "LigerLayerNormFunction", x, weight, bias, eps)


def _bias(arguments):
    return {"bias": torch.zeros_like(arguments["weight"])}


GRADIENTS = {"dx": "x", "dweight": "weight", "dbias": "bias"}
bench = Bench(
    baselines=[
        autograd("F.layer_norm", _forward, GRADIENTS, more=_bias),
        autograd("torch.compile", _forward, GRADIENTS, more=_bias, compile=True),
        autograd("Liger-Kernel", _liger, GRADIENTS, more=_bias, needs="liger_kernel", devices=("cuda",)),
    ]
)
