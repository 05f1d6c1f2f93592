"""layer_norm_backward(x, weight, dy): dx of (rows, cols), dweight and dbias of (cols,); mean and rstd may be given."""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Draw, Operand, Output, Property
from touchstone.reference.layer_norm_backward import torch_layer_norm_backward


def expect(inputs, params, *, dtype, compute=None):
    """Statistics given or not, the answer is that of their exact values: the bound holds their rounding."""
    x, weight, dy = inputs["x"], inputs["weight"], inputs["dy"]
    rows, cols = x.shape
    answers = torch_layer_norm_backward(x, weight, dy, **params)
    s = bounds_rows.layer_statistics(x, params["eps"])
    g, normalised = (dy * weight).abs(), s.normalised.abs()
    along = (g * normalised).mean(-1, keepdim=True)
    direct = (1 + s.kappa) * (g + g.mean(-1, keepdim=True) + normalised * along)
    through = s.error * along + normalised * (g * s.error).mean(-1, keepdim=True)
    conditions = s.rstd * (direct + through), (dy.abs() * s.error).sum(0), dy.abs().sum(0)
    terms = cols, max(cols, rows), rows
    return {
        name: Expected(answer, parts=[(count, condition)])
        for name, answer, count, condition in zip(("dx", "dweight", "dbias"), answers, terms, conditions, strict=True)
    }


def derive(inputs, params):
    x = inputs["x"]
    centred = x - x.mean(-1, keepdim=True)
    return {"mean": x.mean(-1), "rstd": (centred.square().mean(-1) + params["eps"]).rsqrt()}


def _family(make, gradient):
    def family(draw: Draw):
        x, dy = make(draw, draw.shape("x")), gradient(draw, draw.shape("dy"))
        return {"x": x, "weight": bounds_rows.signal(draw, "weight"), "dy": dy}

    return family


def _valid(case) -> bool:
    if not _norms.divides(case, case.size["cols"]):
        return False
    if bounds_rows.repeats(case, "x") or bounds_rows.repeats(case, "weight", "dy"):
        return False
    if bounds_rows.repeats(case, "dy", axis="rows") or bounds_rows.hides_cancellation(case, case.size["cols"]):
        return False
    return bounds_rows.informative(case, ("one_nan",))


contract = Contract(
    operands={
        "x": Operand("rows cols"),
        "weight": Operand("cols", layouts.VECTOR),
        "dy": Operand("rows cols"),
        "mean": Operand("rows", bounds_rows.STATISTIC, torch.float32, derived=True, positional=False, counts=False),
        "rstd": Operand("rows", bounds_rows.STATISTIC, torch.float32, derived=True, positional=False, counts=False),
    },
    outputs={"dx": Output("rows cols"), "dweight": Output("cols"), "dbias": Output("cols")},
    sizes=bounds_rows.BACKWARD_SIZES,
    values={
        "normal": _family(bounds_rows.lifted, bounds_rows.lifted),
        "mean_offset": _family(values.mean_offset, values.normal),
        "gradient_offset": _family(values.normal, bounds_rows.offset_gradient),
        "tiny": _family(_norms.tiny, values.normal),
        "ascending": _family(values.ascending, values.ascending),
        "row_scales": _family(values.row_scales, values.row_scales),
        "one_nan": _family(bounds_rows.one_nan, bounds_rows.lifted),
        "cancelling_rows": bounds_rows.cancelling_rows,
        "binary": _family(values.normal, values.binary),
    },
    params={"eps": (1e-5, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    derive=derive,
    exact={"binary": ["dbias"]},
    large=common.ROWS,
    flops=lambda size, param: 16 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: (3 * size["rows"] + 3) * size["cols"] * item,
    invalid=bounds_rows.invalid_calls(
        "x", matrices=("dy",), vectors=("weight", "mean", "rstd"), optional=("mean", "rstd")
    ),
    properties=[
        Property("rows are independent", bounds_rows.rows_are_independent("x", "dy")),
        Property("linear in dy", bounds_rows.scaled_gradient, bitwise=True),
        Property("rows of dx sum to 0 with weight 1", bounds_rows.gradient_is_orthogonal(centred=True)),
    ],
)


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
