"""glu_backward(gate, up, dy, *, activation): dgate = dy·up·act'(gate) and dup = dy·act(gate), (rows, cols) each."""

import math
from dataclasses import replace

import torch

from touchstone.conformance.contracts import _activations as acts
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _glu
from touchstone.conformance.contracts._baselines import INDEPENDENT_AXES
from touchstone.conformance.contracts._pointwise import (
    MATRICES,
    of_shapes,
    pointwise,
    special_of_each,
    with_large,
    with_special,
)
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.contract import Draw, Int64Index, Property, beyond_largest
from touchstone.reference._activations import torch_act
from touchstone.reference.glu_backward import torch_glu_backward


def _act(gate, up, dy, activation):
    return torch_act(gate, activation)


def _act_error(inputs, params):
    return [acts.error(inputs["gate"], params["activation"])]


def _error(inputs, params):
    dgate, dup = (answer.abs() for answer in torch_glu_backward(**inputs, **params))
    gate, up, dy = (inputs[name] for name in ("gate", "up", "dy"))
    steep = acts.slope_error(gate, params["activation"])
    return [2 * dgate + steep * (dy * up).abs(), dup + _act_error(inputs, params)[0] * dy.abs()]


def _from_stored(h, gate, up, dy, activation):
    return torch_glu_backward(gate, up, dy, activation=activation)[0], dy * h


def _of_act(gate, up, dy, activation):
    return dy * up


def _from_stored_of_act(h, gate, up, dy, activation):
    return torch_glu_backward(gate, torch.ones_like(h), h, activation=activation)[0], dy * torch_act(gate, activation)


def _beyond_largest(draw: Draw):
    """Products of dy and factors above 1: the gate, which the activation hardly changes, and up."""
    dy = draw.of_largest("dy", 0.75, 1.0)
    dy[:, ::2] *= -1
    return {"gate": draw.uniform(draw.shape("gate"), 3.0, 6.0), "up": draw.uniform(dy.shape, 2.0, 4.0), "dy": dy}


_normal = with_large("gate", acts.BENDS)
_elements = pointwise(
    torch_glu_backward,
    ["gate", "up", "dy"],
    outputs=("dgate", "dup"),
    params={"activation": _glu.ACTIVATIONS},
    error=_error,
    # what autograd stores of a product of two in 16 bits: the forward's factor, and the gradient of that factor
    stored=((_act, _from_stored, _act_error), (_of_act, _from_stored_of_act)),
    values={
        "normal": _normal,
        "quarters": acts.quarters("gate"),
        # act' of NaN is 1 in one form of relu's and NaN in another: `nan_in` below
        "special": with_special((math.nan, math.inf, 0.0, -0.0), _normal, without=("gate",), steep=("gate", 4.0)),
    },
    valid=_glu.is_exact,
    exact={"integers": ["dup"]},
    also=of_shapes(MATRICES, "gate", "up", "dy")
    | _glu.JOINED
    | acts.slopes_in_16_bits("gate", _glu.ACTIVATIONS)
    | acts.tails_in_16_bits("gate", _glu.ACTIVATIONS)
    | special_of_each(MATRICES, {"activation": _glu.ACTIVATIONS})
    | acts.nan_in("gate", _glu.ACTIVATIONS)
    | beyond_largest({"rows": 3, "cols": 33}, _beyond_largest),
    gradient_of="glu",
    int64_index=Int64Index({"rows": 2**17 + 3, "cols": 2**14 + 8}, rows={"gate": 0, "up": 0, "dy": 0}),
    cost=16,
    calls=lambda size, param: size["rows"] * size["cols"],
    invalid=_glu.INVALID,
    properties=[
        Property("linear in dy", bounds_rows.scales_with("dy", last="up"), bitwise=True),
        Property("rows are independent", bounds_rows.rows_are_independent("gate", "up", "dy", outputs=(0, 1))),
        _glu.halves_of_one(),
    ],
)


def expect(inputs, params, *, dtype, compute=None):
    """With what act' may be of NaN besides."""
    found = _elements.expect(inputs, params, dtype=dtype, compute=compute)
    return found | {"dgate": acts.with_slopes_of_nan(found["dgate"], inputs["gate"], params["activation"])}


contract = replace(_elements, expect=expect)


def _forward(gate, up, activation, **_):
    return acts.LIBRARY[activation](gate) * up


GRADIENTS = {"dgate": "gate", "dup": "up"}
bench = Bench(
    baselines=[
        autograd("torch eager", _forward, GRADIENTS),
        autograd("torch.compile", _forward, GRADIENTS, compile=True),
    ],
    independent_axes=INDEPENDENT_AXES,
)
