"""add_rms_norm(x, residual, weight): h = x + residual, y = rms_norm(h); x, residual, y and h are (rows, cols)."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms, add_layer_norm, rms_norm
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Draw, Operand, Output, Property
from touchstone.reference.add_rms_norm import torch_add_rms_norm


def expect(inputs, params, *, dtype, compute=None):
    """y is the norm of h before or after h is rounded to the output's dtype, each with rms_norm's two answers.

    Or the mean square is that of h before, and what it divides is h after.
    """
    y, h = torch_add_rms_norm(**inputs, **params)
    expected = rms_norm.expect({"x": h, "weight": inputs["weight"]}, params, dtype=dtype)["y"]
    expected.answer = y
    if dtype is not torch.float32:
        rounded = h.to(dtype).to(torch.float64)
        after = rms_norm.expect({"x": rounded, "weight": inputs["weight"]}, params, dtype=dtype)["y"]
        mixed = replace(
            expected, answer=y + (rounded - h) * _factor(h, inputs["weight"], params["eps"]), alternatives=[]
        )
        expected.alternatives += [after, *after.alternatives, mixed]
    return {"y": expected, "h": Expected(h)}


def _factor(h: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """dy/dh with the mean square held."""
    return (h.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def _family(make, cancel=False, residual=None):
    def family(draw: Draw):
        x = make(draw, draw.shape("x"))
        other = bounds_rows.opposite(draw, x) if cancel else make(draw, draw.shape("residual"))
        other = other if residual is None else residual(other)
        return {"x": x, "residual": other, "weight": bounds_rows.signal(draw, "weight")}

    return family


def _valid(case) -> bool:
    if not _norms.divides(case, case.size["cols"]) or bounds_rows.repeats(case, *add_layer_norm.summands(case)):
        return False
    return bounds_rows.informative(case, ("one_nan",))


contract = Contract(
    operands={"x": Operand("rows cols"), "residual": Operand("rows cols"), "weight": Operand("cols", layouts.VECTOR)},
    outputs={"y": Output("rows cols"), "h": Output("rows cols")},
    sizes=bounds_rows.SIZES,
    values={
        "normal": _family(bounds_rows.lifted),
        "large": _family(values.large),
        "tiny": _family(_norms.tiny),
        "ascending": _family(values.ascending),
        "row_scales": _family(values.row_scales),
        "cancel": _family(bounds_rows.lifted, cancel=True),
        "no_residual": _family(bounds_rows.lifted, residual=torch.zeros_like),
        "binary": _family(values.binary),
        "one_nan": _family(bounds_rows.one_nan),
    },
    params={"eps": (1e-6, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    exact={"binary": ["h"]},
    large=common.ROWS,
    flops=lambda size, param: 5 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: (4 * size["rows"] + 1) * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("x", matrices=("residual",), vectors=("weight",)),
    properties=[
        Property("h is x + residual rounded once", bounds_rows.sum_is_rounded_once),
        Property("x and residual change places", bounds_rows.summands_commute),
        Property("weight 0 gives 0", bounds_rows.zero_weight_leaves_bias),
        Property("rows are normalised", bounds_rows.unit_weight_normalises("x", "residual", centred=False)),
        Property("rows are independent", bounds_rows.rows_are_independent("x", "residual", outputs=(0, 1))),
    ],
)


def _torch(x, residual, weight, eps):
    h = x + residual
    return {"y": F.rms_norm(h, h.shape[-1:], weight, eps), "h": h}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch),
        common.liger(
            "fused_add_rms_norm",
            "LigerFusedAddRMSNormFunction",
            lambda x, residual, weight, eps: (x, residual, weight, eps, 0.0, "llama", False),
            "y",
            "h",
        ),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
