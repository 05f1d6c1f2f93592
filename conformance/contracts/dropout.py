"""dropout(x, *, p, seed, offset): y = x/(1 - p) where Philox keeps the element, else 0; any shape."""

import math

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _dropout
from touchstone.conformance.contracts._pointwise import ANY_RANK, of_shapes, pointwise
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import simple
from touchstone.reference.dropout import torch_dropout


def expect(inputs, params, *, dtype, compute=None):
    """A product with 1/(1 - p), which is rounded too; which elements are kept is no matter of rounding."""
    return {"y": simple(torch_dropout(inputs["x"], **params), terms=2)}


contract = pointwise(
    torch_dropout,
    ["x"],
    axes=ANY_RANK,
    sizes=_dropout.SIZES,
    also=of_shapes(ANY_RANK, "x") | _dropout.beyond_largest_of("x", _dropout.SIZES[0]),
    params={"p": _dropout.P, **_dropout.STREAMS},
    expect=expect,
    valid=_dropout.seen,
    cost=_dropout.RANDOM,
    calls=lambda size, param: math.prod(size["trailing"]),
    large=_dropout.LARGE,
    invalid=_dropout.invalid("p", "seed", "offset"),
    properties=_dropout.laws(),
)


bench = Bench(
    baselines=common.torch_baselines(
        lambda **given: {"by another mask": _dropout.eager(**given)}, "F.dropout (a mask of its own)"
    ),
    params={"p": (0.1,)},
)
