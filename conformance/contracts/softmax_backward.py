"""softmax_backward(y, dy): dx = y·(dy - sum y·dy) along the last axis of (rows, cols); y is the forward's output."""

import math

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts._bounds_dots import summed
from touchstone.conformance.spec import values
from touchstone.conformance.spec.baselines import Bench, compiled, eager
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Contract, Draw, Int64Index, Operand, Output, Property
from touchstone.reference.softmax_backward import torch_softmax_backward


def expect(inputs, params, *, dtype, compute=None):
    y, dy = inputs["y"], inputs["dy"]
    weight, size = finite(y).abs(), finite(dy).abs()
    terms = summed(weight * size, -1).unsqueeze(-1)
    condition = weight * (size + (weight * size).sum(-1, keepdim=True))
    return {"dx": Expected(torch_softmax_backward(y, dy), parts=[(terms, condition)])}


def _forward(logits):
    return torch.softmax(values.lift_tail(logits), -1)


def _family(logits, gradient):
    def family(draw: Draw):
        shape = draw.shape("y")
        return {"y": _forward(logits(draw, shape)), "dy": values.lift_tail(gradient(draw, shape))}

    return family


def _peaked(draw: Draw, shape):
    """Logits far apart: most of y is 0 and the rest cancels."""
    return draw.normal(shape, 8.0)


def _offset(draw: Draw, shape):
    """dy = 100 + noise: dx is what is left of dy - sum y·dy, so a rounded or short sum shows."""
    return draw.normal(shape, 1.0, 100.0)


def _masked(draw: Draw):
    """y is 0 where the forward saw -inf, whole leading tiles of it."""
    logits = bounds_rows.partial_neg_inf(draw, draw.shape("y"))
    return {"y": torch.softmax(logits, -1), "dy": draw.normal(logits.shape)}


def _binary(draw: Draw):
    """{0, 1}: every sum is an exact integer."""
    return {"y": values.binary(draw, draw.shape("y")), "dy": values.binary(draw, draw.shape("dy"))}


def _nan_row(draw: Draw):
    """The forward's y of a row of -inf is NaN, and so is its gradient; other rows are not. In the first of several dy
    is infinite where y is 0."""
    y = _forward(draw.normal(draw.shape("y")))
    dy = draw.normal(y.shape)
    if len(y) > 1:
        y[0, 0], dy[0, 0] = 0, math.inf
    y[-1] = math.nan
    return {"y": y, "dy": dy}


def _valid(case) -> bool:
    if case.values == "masked" and case.size["cols"] == 1:
        return False
    return bounds_rows.informative(case, ("nan_row",))


def _rows_sum_to_zero(call, arguments, outputs, case):
    """sum dx = (1 - sum y)·sum y·dy: what rounding y leaves."""
    y, dy, dx = arguments["y"].double(), arguments["dy"].double(), outputs[0].double()
    delta = (y * dy).sum(-1)
    error = (dx.sum(-1) - (1 - y.sum(-1)) * delta).abs()
    unit = torch.finfo(outputs[0].dtype).eps
    tiny = torch.finfo(outputs[0].dtype).tiny
    limit = unit * (dx.abs() + y * delta[:, None].abs() + tiny).sum(-1)
    worst = (error / limit).max().item()
    return None if worst <= 1 else f"a row of dx sums to {worst:.3g} times what rounding explains"


contract = Contract(
    gradient_of="softmax",
    operands={"y": Operand("rows cols"), "dy": Operand("rows cols")},
    outputs={"dx": Output("rows cols")},
    sizes=bounds_rows.SIZES,
    regular=bounds_rows.REGULAR,
    beyond_grid=bounds_rows.BEYOND_GRID,
    over_tiles=bounds_rows.OVER_TILES,
    also=bounds_rows.LONG_ROWS,
    int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"y": 0, "dy": 0}),
    values={
        "normal": _family(values.normal, values.normal),
        "peaked": _family(_peaked, values.normal),
        "offset": _family(values.normal, _offset),
        "ascending": _family(values.ascending, values.ascending),
        "row_scales": _family(values.normal, values.row_scales),
        "masked": _masked,
        "binary": _binary,
        "nan_row": _nan_row,
    },
    valid=_valid,
    expect=expect,
    exact={"binary": ["dx"]},
    large=common.ROWS,
    flops=lambda size, param: 4 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: 3 * size["rows"] * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("y", matrices=("dy",)),
    properties=[
        Property("rows sum to zero", _rows_sum_to_zero),
        Property("rows are independent", bounds_rows.rows_are_independent("y", "dy")),
        Property("linear in dy", bounds_rows.scaled_gradient, bitwise=True),
    ],
)

bench = Bench(
    baselines=[
        eager("torch eager", lambda y, dy: {"dx": torch._softmax_backward_data(dy, y, -1, y.dtype)}),
        compiled(lambda y, dy: {"dx": y * (dy - (y.float() * dy.float()).sum(-1, keepdim=True)).to(y.dtype)}),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
