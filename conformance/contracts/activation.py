"""activation(x, bias, *, activation): y = act(x + bias) of each element of (rows, cols); bias (cols,) may be None."""

import math

import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts._pointwise import (
    MATRICES,
    across_rows,
    of_shapes,
    pointwise,
    special_of_each,
    with_large,
)
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import EPS32
from touchstone.conformance.spec.contract import (
    Draw,
    Int64Index,
    Invalid,
    Operand,
    Property,
    beyond_largest,
    with_params,
)
from touchstone.reference._activations import torch_act
from touchstone.reference.activation import torch_activation


def _sum(x, bias, **params):
    return x if bias is None else x + bias


def _error(inputs, params):
    """That of act, and of the sum before it as far as act is steep; all of z beside a jump."""
    name, z = params["activation"], _sum(**inputs)
    if inputs["bias"] is None:
        return [acts.error(z, name)]
    condition = inputs["x"].abs() + inputs["bias"].abs()
    jumps = acts.beside_a_jump(z, condition, acts.JUMPS.get(name, ())) & (z != z.to(torch.float32))
    return [
        acts.error(z, name) + acts.moved(torch_act, z, name, condition, acts.STEEPEST[name]) + jumps * z.abs() / EPS32
    ]


def _beyond_largest(draw: Draw):
    """The sum; the activation leaves it as it is."""
    return {name: draw.of_largest(name, 0.75, 1.0) for name in ("x", "bias")}


def _valid(case) -> bool:
    return case.values != "integers" or case.param["activation"] in acts.EXACT


def _is_halved_symmetrically(call, arguments, outputs, case):
    """x·g(x) with g(x) + g(-x) = 1."""
    x = arguments["x"].clamp(-8, 8)
    plus, minus = (call(**{**arguments, "x": signed, "bias": None})[0].double() for signed in (x, -x))
    x = x.double()
    limit = torch.finfo(case.torch_dtype).eps * (plus.abs() + minus.abs() + x.abs()) + 8 * EPS32 * x.abs()
    worst = ((plus - minus - x).abs() - limit).max().item()
    return None if worst <= 1e-7 else f"act(x) - act(-x) is {worst:.3g} further from x than rounding explains"


def _nan_stays(call, arguments, outputs, case):
    """In relu, whose comparisons lose it."""
    x = arguments["x"].clone()
    x[0, 0] = x[-1, -1] = math.nan
    found = call(**{**arguments, "x": x, "bias": None, "activation": "relu"})[0].isnan()
    if bool((x.isnan() & ~found).any()):
        return "relu gives a number where x is NaN"
    return None if torch.equal(found, x.isnan()) else "relu gives NaN where x is a number"


contract = pointwise(
    torch_activation,
    {"x": Operand("rows cols"), "bias": Operand("cols", bounds_rows.OPTIONAL)},
    params={"activation": acts.NAMES},
    error=_error,
    stored=(_sum, lambda z, x, bias, activation: torch_act(z, activation)),
    approximate=lambda inputs, params: [acts.approximate(_sum(**inputs), params["activation"])],
    values={"normal": with_large("x", acts.BENDS, "bias"), "quarters": acts.quarters("x", "bias")},
    special=(math.nan, math.inf, 0.0, -0.0),  # -inf times the 0 of a sigmoid is NaN in one form and 0 in another
    valid=_valid,
    exact={"integers": ["y"]},
    also=of_shapes(MATRICES, "x")
    | special_of_each(MATRICES, {"activation": acts.NAMES})
    | across_rows({"activation": acts.NAMES})
    | acts.tails_in_16_bits("x", acts.NAMES)
    | beyond_largest({"rows": 3, "cols": 33}, _beyond_largest),
    int64_index=Int64Index({"rows": 2**17 + 3, "cols": 2**14 + 8}, rows={"x": 0}),
    cost=8,
    calls=lambda size, param: size["rows"] * size["cols"],
    bytes=lambda size, param, item: (2 * size["rows"] + 1) * size["cols"] * item,
    invalid=[Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh")],
    properties=[
        Property("act(x) - act(-x) is x", _is_halved_symmetrically),
        Property("NaN stays NaN", _nan_stays, elsewhere=with_params(activation="relu")),
        Property("rows are independent", bounds_rows.rows_are_independent("x")),
    ],
)


def _torch(x, bias, activation):
    return {"y": acts.LIBRARY[activation](x if bias is None else x + bias)}


bench = Bench(baselines=common.torch_baselines(_torch), independent_axes=common.INDEPENDENT_AXES)
