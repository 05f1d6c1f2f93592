"""dropout_bitmask(x, *, p, seed, offset): y = dropout(x), and the bits of what is kept, (ceil(n/32),) int32."""

import math
from dataclasses import replace

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _dropout
from touchstone.conformance.contracts._pointwise import ANY_RANK, REGULAR, pointwise
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, simple
from touchstone.conformance.spec.contract import Output, Regular
from touchstone.reference.dropout_bitmask import torch_dropout_bitmask


def expect(inputs, params, *, dtype, compute=None):
    y, bits = torch_dropout_bitmask(inputs["x"], **params)
    return {"y": simple(y, terms=2), "bits": Expected(bits.double(), dtype=torch.int32)}


_both = pointwise(
    torch_dropout_bitmask,
    ["x"],
    outputs=("y", "bits"),
    axes=ANY_RANK,
    sizes=_dropout.with_words(_dropout.SIZES),
    regular=Regular(_dropout.with_words(REGULAR[ANY_RANK].sizes)),
    also=_dropout.of_shapes_with_words("x") | _dropout.beyond_largest_of("x", _dropout.with_words(_dropout.SIZES)[0]),
    params={"p": _dropout.P, **_dropout.STREAMS},
    expect=expect,
    valid=lambda case: _dropout.words_fit(case) and _dropout.seen(case),
    cost=_dropout.RANDOM,
    calls=lambda size, param: math.prod(size["trailing"]),
    bytes=lambda size, param, item: 2 * math.prod(size["trailing"]) * item + 4 * size["words"],
    large=_dropout.with_words(_dropout.LARGE),
    invalid=_dropout.invalid("p", "seed", "offset"),
    properties=_dropout.laws(),
)

contract = replace(_both, outputs={"y": Output(ANY_RANK), "bits": Output("words", torch.int32)})

bench = Bench(
    baselines=common.torch_baselines(
        lambda x, p, **stream: {"by another mask": _dropout.eager(x, p=p)}, "F.dropout (a mask of its own, of bytes)"
    ),
    params={"p": (0.1,)},
)
