"""add_layer_norm(x, residual, weight, bias): h = x + residual, y = layer_norm(h), (rows, cols) each; bias or None"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms, layer_norm
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Draw, Operand, Output, Property
from touchstone.reference.add_layer_norm import torch_add_layer_norm


def expect(inputs, params, *, dtype, compute=None):
    """y is the norm of h before or after h is rounded to the output's dtype, or the statistics are of h before: three
    answers."""
    y, h = torch_add_layer_norm(**inputs, **params)
    expected = layer_norm.expect({**inputs, "x": h}, params, dtype=dtype)["y"]
    expected.answer = y
    if dtype is not torch.float32:
        rounded = h.to(dtype).to(torch.float64)
        mixed = y + (rounded - h) * _factor(h, inputs["weight"], params["eps"])
        expected.alternatives = [
            layer_norm.expect({**inputs, "x": rounded}, params, dtype=dtype)["y"],
            replace(expected, answer=mixed, alternatives=[]),
        ]
    return {"y": expected, "h": Expected(h)}


def _factor(h: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """dy/dh with the statistics held."""
    return ((h - h.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def _family(make, cancel=False, residual=None):
    def family(draw: Draw):
        x = make(draw, draw.shape("x"))
        other = bounds_rows.opposite(draw, x) if cancel else make(draw, draw.shape("residual"))
        other = other if residual is None else residual(other)
        vectors = {name: bounds_rows.signal(draw, name) for name in ("weight", "bias")}
        return {"x": x, "residual": other, **vectors}

    return family


def summands(case) -> tuple[str, ...]:
    """The operands whose values make h."""
    return ("x",) if case.values == "no_residual" else ("x", "residual")


def _valid(case) -> bool:
    if not _norms.divides(case, case.size["cols"]) or bounds_rows.repeats(case, *summands(case)):
        return False
    if bounds_rows.hides_cancellation(case, case.size["cols"]):
        return False
    return bounds_rows.informative(case, ("one_nan",))


contract = Contract(
    operands={
        "x": Operand("rows cols"),
        "residual": Operand("rows cols"),
        "weight": Operand("cols", layouts.VECTOR),
        "bias": Operand("cols", bounds_rows.OPTIONAL),
    },
    outputs={"y": Output("rows cols"), "h": Output("rows cols")},
    sizes=bounds_rows.SIZES,
    values={
        "normal": _family(bounds_rows.lifted),
        "mean_offset": _family(values.mean_offset),
        "tiny": _family(_norms.tiny),
        "ascending": _family(values.ascending),
        "row_scales": _family(values.row_scales),
        "cancel": _family(bounds_rows.lifted, cancel=True),
        "no_residual": _family(bounds_rows.lifted, residual=torch.zeros_like),
        "binary": _family(values.binary),
        "one_nan": _family(bounds_rows.one_nan),
    },
    params={"eps": (1e-5, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    exact={"binary": ["h"]},
    large=common.ROWS,
    flops=lambda size, param: 9 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: (4 * size["rows"] + 2) * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("x", matrices=("residual",), vectors=("weight", "bias"), optional=("bias",)),
    properties=[
        Property("h is x + residual rounded once", bounds_rows.sum_is_rounded_once),
        Property("x and residual change places", bounds_rows.summands_commute),
        Property("weight 0 gives the bias", bounds_rows.zero_weight_leaves_bias),
        Property("rows are normalised", bounds_rows.unit_weight_normalises("x", "residual", centred=True)),
        Property("rows are independent", bounds_rows.rows_are_independent("x", "residual", outputs=(0, 1))),
    ],
)


def _torch(x, residual, weight, bias, eps):
    h = x + residual
    return {"y": F.layer_norm(h, h.shape[-1:], weight, bias, eps), "h": h}


bench = Bench(baselines=common.torch_baselines(_torch), independent_axes=common.INDEPENDENT_AXES)
