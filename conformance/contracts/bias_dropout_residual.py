"""bias_dropout_residual(x, bias, residual, *, p, seed, offset): y = dropout(x + bias) + residual; bias may be None."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _dropout
from touchstone.conformance.contracts._pointwise import MATRICES, pointwise
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Operand, Regular
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
    """Three terms, of which the first two are scaled; nothing is behind an element that is dropped but the residual."""
    x, bias, residual = inputs["x"], inputs["bias"], inputs["residual"]
    y = torch_bias_dropout_residual(x, bias, residual, **params)
    ones = torch_dropout(torch.ones_like(x), **params) != 0
    size = finite(x).abs() + (0.0 if bias is None else finite(bias).abs())
    condition = torch.where(ones, size * scale(params["p"]), 0.0) + finite(residual).abs()
    return {"y": Expected(y, parts=[(3, condition)])}


contract = pointwise(
    torch_bias_dropout_residual,
    {"x": Operand(MATRICES), "bias": Operand("cols", bounds_rows.OPTIONAL), "residual": Operand(MATRICES)},
    sizes=SIZES,
    regular=REGULAR,
    params={"p": (0.0, 0.5, 0.1), **_dropout.STREAMS},
    expect=expect,
    cost=_dropout.RANDOM + 2,
    calls=lambda size, param: size["rows"] * size["cols"],
    bytes=lambda size, param, item: (3 * size["rows"] + 1) * size["cols"] * item,
    invalid=_dropout.invalid("p", "seed", "offset"),
    properties=_dropout.laws(),
)


def _torch(x, bias, residual, p, seed, offset):
    return {"by another mask": residual + _dropout.eager(x if bias is None else x + bias, p=p)}


bench = Bench(baselines=common.torch_baselines(_torch, "eager (a mask of its own)"), params={"p": (0.1,)})
