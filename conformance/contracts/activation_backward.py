"""activation_backward(x, bias, dy, *, activation): dx = dy·act'(x + bias), (rows, cols), and dbias, its sum over rows.

bias (cols,) may be None, and so is dbias then.
"""

import math
from dataclasses import replace

import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts._bounds_dots import accumulated
from touchstone.conformance.contracts._pointwise import (
    MATRICES,
    across_rows,
    of_shapes,
    pointwise,
    special_of_each,
    with_large,
    with_special,
)
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import EPS32, Expected, finite
from touchstone.conformance.spec.contract import Draw, Invalid, Operand, Output, Property, beyond_largest, with_params
from touchstone.reference._activations import torch_act_grad


def _sum(x, bias, dy=None, **params):
    return x if bias is None else x + bias


def _dx(x, bias, dy, activation):
    return dy * torch_act_grad(_sum(x, bias), activation)


def _error(inputs, params):
    """That of act', of the product, and of the sum before act' as far as act bends; all of dy beside a jump."""
    name, z, dy = params["activation"], _sum(**inputs), inputs["dy"].abs()
    own = dy * acts.slope_error(z, name) + _dx(**inputs, **params).abs()
    if inputs["bias"] is None:
        return [own]
    condition = inputs["x"].abs() + inputs["bias"].abs()
    jumps = acts.beside_a_jump(z, condition, acts.SLOPE_JUMPS.get(name, ())) & (z != z.to(torch.float32))
    return [own + dy * acts.moved(torch_act_grad, z, name, condition, acts.CURVATURE[name]) + jumps * dy / EPS32]


def _beyond_largest(draw: Draw):
    """Slopes of about 1.4, the steepest of all activations', and in every column gradients of one sign."""
    dy = draw.of_largest("dy", 0.9, 1.0)
    dy[:, ::2] *= -1
    bias = torch.zeros(draw.shape("bias"), dtype=torch.float64)
    return {"x": draw.uniform(draw.shape("x"), 2.7, 2.95), "bias": bias, "dy": dy}


def _valid(case) -> bool:
    if case.values == "integers" and case.param["activation"] not in acts.EXACT:
        return False
    return not bounds_rows.repeats(case, "x", "dy", axis="rows")


def _flat_at_0(call, arguments, outputs, case):
    """relu' is 0 there, as torch has it."""
    given = {**arguments, "x": torch.zeros_like(arguments["x"]), "bias": None, "activation": "relu"}
    return "relu's slope at 0 is not 0" if call(**given)[0].any() else None


_normal = with_large("x", acts.BENDS, "bias")
_elements = pointwise(
    _dx,
    {"x": Operand("rows cols"), "bias": Operand("cols", bounds_rows.OPTIONAL), "dy": Operand("rows cols")},
    outputs=("dx",),
    params={"activation": acts.NAMES},
    error=_error,
    stored=(
        lambda x, bias, dy, activation: _sum(x, bias),
        lambda z, x, bias, dy, activation: _dx(z, None, dy, activation),
    ),
    values={
        "normal": _normal,
        "quarters": acts.quarters("x", "bias"),
        # act' of NaN is 1 in one form of relu's and NaN in another: `nan_in` below
        "special": with_special((math.nan, 0.0, -0.0), _normal, without=("x", "bias"), steep=("x", 40.0)),
    },
    valid=_valid,
    exact={"integers": ["dx", "dbias"]},
    also=of_shapes(MATRICES, "x", "dy")
    | bounds_rows.ONE_ROW_MORE
    | acts.slopes_in_16_bits("x", acts.NAMES)
    | acts.tails_in_16_bits("x", acts.NAMES)
    | special_of_each(MATRICES, {"activation": acts.NAMES})
    | acts.nan_in("x", acts.NAMES)
    | across_rows({"activation": acts.NAMES})
    | beyond_largest({"rows": 3, "cols": 33}, _beyond_largest, {"activation": "hardswish"}),
    gradient_of="activation",
    cost=16,
    calls=lambda size, param: size["rows"] * size["cols"],
    bytes=lambda size, param, item: (3 * size["rows"] + 2) * size["cols"] * item,
    invalid=[Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh")],
    properties=[
        Property("linear in dy", bounds_rows.scaled_gradient, bitwise=True),
        Property("rows are independent", bounds_rows.rows_are_independent("x", "dy")),
        Property("relu is flat at 0", _flat_at_0, elsewhere=with_params(activation="relu")),
    ],
)


def _summed(dx: Expected, dtype: torch.dtype) -> list[Expected]:
    """dbias from dx as it is computed, and from dx as it is stored: rounded, to a neighbour where it is off."""
    rows = dx.answer.shape[0]
    ((_, error),) = dx.parts
    size = finite(dx.answer.abs()).sum(0)
    noise = accumulated(1, finite(torch.as_tensor(error))) + dx.extra
    computed = Expected(dx.answer.sum(0), parts=[(rows, size)], extra=noise.sum(0))
    if dtype is torch.float32:
        return [computed]
    low, near, high = (v.to(dtype).to(torch.float64) for v in (dx.answer - noise, dx.answer, dx.answer + noise))
    spread = 1.25 * torch.maximum(finite(high - near), finite(near - low)).sum(0)
    return [computed, Expected(near.sum(0), parts=[(rows, size)], extra=spread)]


def expect(inputs, params, *, dtype, compute=None):
    """dbias of each answer that dx has, before or after it is rounded."""
    dx = _elements.expect(inputs, params, dtype=dtype, compute=compute)["dx"]
    dx = acts.with_slopes_of_nan(dx, _sum(**inputs), params["activation"])
    if inputs["bias"] is None:
        return {"dx": dx, "dbias": None}
    dbias, *others = [one for answer in (dx, *dx.alternatives) for one in _summed(answer, dtype)]
    return {"dx": dx, "dbias": replace(dbias, alternatives=others)}


contract = replace(_elements, outputs={"dx": Output("rows cols"), "dbias": Output("cols")}, expect=expect)


def _forward(x, bias, activation, **_):
    return acts.LIBRARY[activation](x if bias is None else x + bias)


GRADIENTS = {"dx": "x", "dbias": "bias"}
bench = Bench(
    baselines=[
        autograd("torch eager", _forward, GRADIENTS),
        autograd("torch.compile", _forward, GRADIENTS, compile=True),
    ]
)
