"""bias_dropout_residual(x, bias, residual, *, p, seed, offset): y = dropout(x + bias) + residual; bias may be None."""

from dataclasses import replace
from functools import partial

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _dropout
from touchstone.conformance.contracts._pointwise import MATRICES, across_rows, of_shapes, pointwise
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import EPS32, C, Expected, finite
from touchstone.conformance.spec.contract import Operand, Regular, each_of_one
from touchstone.reference._philox import scale
from touchstone.reference.bias_dropout_residual import torch_bias_dropout_residual
from touchstone.reference.dropout import torch_dropout

SIZES = [
    {"rows": rows, "cols": cols} for rows, cols in [(3, 40), (1, 1), (0, 5), (5, 0), (16, 64), (7, 127), (2, 16411)]
]
REGULAR = Regular(
    [{"rows": rows, "cols": cols} for rows, cols in [(32, 128), (16, 256), (64, 64), (8, 512)]], {"p": (0.0, 0.5)}
)


def expect(inputs, params, *, dtype, compute=None):
    """Three terms, of which the first two are scaled; nothing is behind an element that is dropped but the residual.

    In 16 bits what stands between the steps may be stored, as eager code stores it: x + bias, what dropout gives, or
    both.
    """
    x, bias, residual = inputs["x"], inputs["bias"], inputs["residual"]
    y = torch_bias_dropout_residual(x, bias, residual, **params)
    kept = torch_dropout(torch.ones_like(x), **params) != 0
    shifted = x if bias is None else x + bias
    size = finite(x).abs() + (0.0 if bias is None else finite(bias).abs())
    scaled = torch.where(kept, size * scale(params["p"]), 0.0)
    found = Expected(y, parts=[(3, scaled + finite(residual).abs())])
    if dtype is not torch.float32:
        drop = partial(_dropped, kept, scale(params["p"]))
        sums = _rounded(shifted, C * EPS32 * size, dtype)
        products = _rounded(drop(shifted), C * EPS32 * scaled, dtype)
        both = [one for stored in sums for one in _rounded(drop(stored), C * EPS32 * scaled, dtype)]
        for between in (map(drop, sums), products, both):
            nearest, *others = (one + residual for one in between)
            spread = torch.stack([finite(nearest - other).abs() for other in others]).amax(0)
            found.alternatives.append(Expected(nearest, parts=found.parts, extra=1.25 * spread))
    return {"y": found}


def _dropped(kept, by, values):
    return torch.where(kept, values * by, 0.0)


def _rounded(values, noise, dtype):
    """`values` rounded to `dtype`, and where an error of float32 can send them instead."""
    return [one.to(dtype).double() for one in (values, values - noise, values + noise)]


contract = pointwise(
    torch_bias_dropout_residual,
    {"x": Operand(MATRICES), "bias": Operand("cols", bounds_rows.OPTIONAL), "residual": Operand(MATRICES)},
    sizes=SIZES,
    over_tiles={"rows": 5, "cols": 2081},
    regular=REGULAR,
    params={"p": (0.0, 0.5, 0.2028), **_dropout.STREAMS},
    expect=expect,
    also={
        name: replace(one, params={"p": 0.5})
        for name, one in (of_shapes(MATRICES, "x", "residual") | across_rows({})).items()
    }
    | each_of_one(SIZES[0])
    | _dropout.beyond_largest_of("x", SIZES[0]),
    cost=_dropout.RANDOM + 2,
    calls=lambda size, param: size["rows"] * size["cols"],
    bytes=lambda size, param, item: (3 * size["rows"] + 1) * size["cols"] * item,
    invalid=_dropout.invalid("p", "seed", "offset"),
    properties=_dropout.laws(),
)


def _torch(x, bias, residual, p, seed, offset):
    return {"by another mask": residual + _dropout.eager(x if bias is None else x + bias, p=p)}


bench = Bench(baselines=common.torch_baselines(_torch, "eager (a mask of its own)"), params={"p": (0.1,)})
