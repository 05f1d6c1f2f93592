"""glu(gate, up, *, activation): y = act(gate)·up of each element of (rows, cols)."""

import math

import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _glu, activation
from touchstone.conformance.contracts._laws import equals_op
from touchstone.conformance.contracts._pointwise import (
    MATRICES,
    of_shapes,
    overflowing,
    pointwise,
    special_of_each,
    with_large,
    with_special,
)
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Draw, Int64Index, Property, beyond_largest
from touchstone.reference._activations import torch_act
from touchstone.reference.glu import torch_glu


def _act(gate, up, activation):
    return torch_act(gate, activation)


def _act_error(inputs, params):
    return [acts.error(inputs["gate"], params["activation"])]


def _error(inputs, params):
    (error,) = _act_error(inputs, params)
    return [(error + _act(**inputs, **params).abs()) * inputs["up"].abs()]


def _up_of_ones(arguments, case):
    return {**arguments, "up": torch.ones_like(arguments["up"])}


def _of_activation(exact, case):
    given = {"x": exact["gate"], "bias": None}
    return {"y": activation.contract.expect(given, {"activation": exact["activation"]}, dtype=case.torch_dtype)["y"]}


def _beyond_largest(draw: Draw):
    """Products of a gate above 1, which the activation hardly changes."""
    up = draw.of_largest("up", 0.75, 1.0)
    up[:, ::2] *= -1
    return {"gate": draw.uniform(draw.shape("gate"), 3.0, 6.0), "up": up}


_normal = with_large("gate", acts.BENDS)


def _closed(draw: Draw):
    """Every fifth gate is -inf, as where it is masked."""
    gate = draw.normal(draw.shape("gate"))
    gate.view(-1)[::5] = -math.inf
    return {"gate": gate, "up": draw.normal(draw.shape("up"))}


contract = pointwise(
    torch_glu,
    ["gate", "up"],
    params={"activation": _glu.ACTIVATIONS},
    error=_error,
    stored=(_act, lambda h, gate, up, activation: h * up, _act_error),
    values={
        "normal": _normal,
        "quarters": acts.quarters("gate"),
        "overflowing": overflowing,
        # where act is next to 0, its product with infinity is NaN in one form
        "special": with_special((math.nan, math.inf, 0.0, -0.0), _normal, steep=("gate", 4.0)),
    },
    valid=_glu.is_exact,
    exact={"integers": ["y"]},
    also=of_shapes(MATRICES, "gate", "up")
    | _glu.JOINED
    | special_of_each(MATRICES, {"activation": _glu.ACTIVATIONS})
    | {
        f"special_gates_{activation}": Also({"rows": 3, "cols": 33}, _closed, {"activation": activation})
        for activation in ("relu", "sigmoid")  # which are 0 there, where a product by 0 is NaN
    }
    | acts.tails_in_16_bits("gate", _glu.ACTIVATIONS)
    | beyond_largest({"rows": 3, "cols": 33}, _beyond_largest),
    int64_index=Int64Index({"rows": 2**17 + 3, "cols": 2**14 + 8}, rows={"gate": 0, "up": 0}),
    cost=9,
    calls=lambda size, param: size["rows"] * size["cols"],
    invalid=_glu.INVALID,
    properties=[
        Property("linear in up", bounds_rows.scales_with("up"), bitwise=True),
        Property("rows are independent", bounds_rows.rows_are_independent("gate", "up")),
        _glu.halves_of_one(),
        equals_op("activation where up is 1", _up_of_ones, _of_activation),
    ],
)


def _torch(gate, up, activation):
    return {"y": acts.LIBRARY[activation](gate) * up}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch),
        common.liger("swiglu", "LigerSiLUMulFunction", lambda gate, up, activation: (gate, up), "y"),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
