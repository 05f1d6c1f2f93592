"""dropout_bitmask_backward(dy, bits, *, p): dx = dy/(1 - p) where the element's bit is 1, else 0; any shape."""

import math
from dataclasses import replace

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _dropout
from touchstone.conformance.contracts._pointwise import ANY_RANK, FAMILIES, REGULAR, SPECIAL, pointwise, with_special
from touchstone.conformance.spec import layouts, rounding
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import simple
from touchstone.conformance.spec.contract import Also, Draw, Operand, Property, Regular
from touchstone.reference.dropout_bitmask_backward import torch_dropout_bitmask_backward


def expect(inputs, params, *, dtype, compute=None):
    return {"dx": simple(torch_dropout_bitmask_backward(inputs["dy"], inputs["bits"], **params), terms=2)}


def _with_bits(family):
    """Every bit by chance, those beyond the last element too, but the last element, which is lifted, is kept; p = 1 has
    kept none."""

    def drawn(draw: Draw):
        bits = draw.integers(draw.shape("bits"), -(2**31), 2**31)
        if len(bits):
            last = (math.prod(draw.shape("dy")) - 1) % 32
            kept = int(bits[-1]) | 1 << last
            bits[-1] = kept - 2**32 if kept >= 2**31 else kept
        return {**family(draw), "bits": bits if draw.param["p"] < 1 else torch.zeros_like(bits)}

    return drawn


def _beyond_largest() -> dict[str, Also]:
    made = _dropout.beyond_largest_of("dy", _dropout.with_words(_dropout.SIZES)[0])
    return {name: replace(one, values=_with_bits(one.values)) for name, one in made.items()}


def _nothing_is_left(call, arguments, outputs, case):
    """No NaN, no infinity and no sign of a zero of an element whose bit is 0."""
    bits = torch.zeros_like(arguments["bits"])
    left = any(_dropout.bits_of(call(**{**arguments, "bits": bits, "p": p})[0]).any() for p in (0.5, 1.0))
    return "something is left of what is dropped" if left else None


def _p_0_keeps_bits(call, arguments, outputs, case):
    """dy itself where all bits are 1, twice dy for p = 0.5."""
    dy, ones = arguments["dy"], torch.full_like(arguments["bits"], -1)
    for p, scale in ((0.0, 1), (0.5, 2)):
        if not torch.equal(call(**{**arguments, "bits": ones, "p": p})[0], scale * dy):
            return f"p = {p}: dx is not {scale}·dy where all bits are 1"
    return None


def _rounds(call, arguments, outputs, case):
    """By 10/9 in 16 bits, of numbers whose products are far from a tie."""
    if case.dtype == "float32":
        return None
    dy, ones = torch.full_like(arguments["dy"], 1.0), torch.full_like(arguments["bits"], -1)
    dy[..., ::2], dy[..., 1::4] = 1.25, 1.375
    found = call(**{**arguments, "dy": dy, "bits": ones, "p": 0.1})[0]
    return rounding.told(found, dy.double() / 0.9, "dy/(1 - p)")


contract = pointwise(
    torch_dropout_bitmask_backward,
    {"dy": Operand(ANY_RANK), "bits": Operand("words", layouts.VECTOR, dtype=torch.int32)},
    outputs=("dx",),
    axes=ANY_RANK,
    sizes=_dropout.with_words(_dropout.SIZES),
    regular=Regular(_dropout.with_words(REGULAR[ANY_RANK].sizes)),
    also=_dropout.of_shapes_with_words("dy") | _beyond_largest(),
    values={name: _with_bits(family) for name, family in {**FAMILIES, "special": with_special(SPECIAL)}.items()},
    params={"p": _dropout.P},
    expect=expect,
    valid=lambda case: _dropout.words_fit(case) and _dropout.seen(case),
    bytes=lambda size, param, item: 2 * math.prod(size["trailing"]) * item + 4 * size["words"],
    large=_dropout.with_words(_dropout.LARGE),
    invalid=_dropout.invalid("p"),
    properties=[
        Property("nothing of what is dropped is left", _nothing_is_left, "special"),
        Property("p 0 gives dy and p 0.5 twice dy", _p_0_keeps_bits, "near_zero"),
        Property("what is kept is rounded to nearest", _rounds),
    ],
    gradient_of="dropout_bitmask",
)

bench = Bench(
    baselines=common.torch_baselines(lambda **given: {"dx": torch_dropout_bitmask_backward(**given)}),
    params={"p": (0.1,)},
)
