"""What the contracts of dropout and its kin share: parameters, laws of the mask, invalid calls, baselines.

A law asks which elements of x, ones, are kept: y is not 0 there, with neither bias nor residual.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts._pointwise import ANY_RANK, of_shapes
from touchstone.conformance.spec import rounding
from touchstone.conformance.spec.contract import Also, Case, Draw, Invalid, Property, beyond_largest, with_params
from touchstone.reference._philox import words

P = (0.5, 0.2028, 0.0, 1.0)  # of 0.2028 the scale is about half a unit off in 16 bits
STREAMS = {"seed": (0, 1, 2**62 + 2**40 + 16), "offset": (0, 3, 2**61 + 2**35 + 1)}
SEED, OFFSET = 7, 5  # of the laws
SMALL = 2**20  # words below stand for a p of 1/4096
MASKED = {"p": 0.5, "seed": SEED, "offset": OFFSET}
LARGE = [{"trailing": shape} for shape in [(4096, 4096), (8192, 8192)]]
SIZES = [{"trailing": s} for s in [(3, 33), (), (0,), (7,), (8, 8), (1025,), (2, 3, 5, 7), (2, 32771)]]
RANDOM = 25.0  # operations of an element: a quarter of what Philox takes

Call = Callable[..., tuple[torch.Tensor, ...]]
Arguments = Mapping[str, Any]


def laws() -> list[Property]:
    """Of ops whose operand x is dropped out, and whose first output shows it."""
    return [
        Property("the mask is the same in another dtype", _same_in_another_dtype, elsewhere=_in_another_dtype),
        Property("the mask is the same in another layout", _same_in_another_layout, elsewhere=_in_another_layout),
        Property("a part from the beginning has the mask of the whole", _same_for_a_part, elsewhere=_masked),
        Property("another seed or offset is another mask", _other_streams_differ, elsewhere=_in_other_streams),
        Property("words are compared as integers", _compared_as_integers, elsewhere=_masked),
        Property("as many are kept as p says", _share_is_kept, elsewhere=_masked),
        Property("nothing of what is dropped is left", _nothing_is_left, "special", elsewhere=_masked),
        Property("what is kept is scaled and rounded to nearest", _exact_scales, "near_zero", elsewhere=_masked),
    ]


_masked = with_params(**MASKED)


def _in_another_dtype(case: Case) -> Case:
    return replace(_masked(case), dtype="float16" if case.dtype == "float32" else "float32")


def _in_another_layout(case: Case) -> Case:
    return replace(_masked(case), layouts=tuple((n, "transposed" if n == "x" else held) for n, held in case.layouts))


def _in_other_streams(case: Case) -> Case:
    return with_params(p=0.5, seed=SEED + 2**32, offset=OFFSET + 2**32)(case)


def _mask(call: Call, arguments: Arguments, x: torch.Tensor, **params: Any) -> torch.Tensor:
    """Which elements of x, ones, are kept."""
    given: dict[str, Any] = {**arguments, **MASKED, "x": x, **params}
    if "bias" in given:
        given |= {"bias": None, "residual": torch.zeros_like(x)}
    return call(**given)[0] != 0


def _ones(arguments: Arguments, dtype: torch.dtype | None = None) -> torch.Tensor:
    x = arguments["x"]
    return torch.ones(x.shape, dtype=dtype or x.dtype, device=x.device)


def _same_in_another_dtype(call, arguments, outputs, case):
    other = torch.float16 if case.dtype == "float32" else torch.float32
    here, there = (_mask(call, arguments, _ones(arguments, dtype)) for dtype in (case.torch_dtype, other))
    return None if torch.equal(here, there) else f"in {case.dtype} other elements are kept than in {other}"


def _same_in_another_layout(call, arguments, outputs, case):
    ones = _ones(arguments)
    turned = ones.transpose(-1, -2).contiguous().transpose(-1, -2)
    same = torch.equal(_mask(call, arguments, ones), _mask(call, arguments, turned))
    return None if same else "other elements are kept where x is transposed in memory"


def _same_for_a_part(call, arguments, outputs, case):
    ones = _ones(arguments)
    same = torch.equal(_mask(call, arguments, ones)[:-1], _mask(call, arguments, ones[:-1]))
    return None if same else "other elements are kept where the last row of x is left out"


def _other_streams_differ(call, arguments, outputs, case):
    """Also shifted by an element, or by four: an offset that is added to the index gives the same mask, shifted."""
    ones = _ones(arguments)
    base = _mask(call, arguments, ones).flatten()
    for name, value in (("seed", SEED), ("offset", OFFSET)):
        for step in (1, -1, 2**32):
            other = _mask(call, arguments, ones, **{name: value + step}).flatten()
            for shift in (0, 1, 4):
                if torch.equal(base[shift:], other[: len(other) - shift]) or torch.equal(other, base.roll(shift)):
                    return f"{name} {value + step} keeps the elements that {value} does, shifted by {shift}"
    return None


def _compared_as_integers(call, arguments, outputs, case):
    """With p·2^32 the word of an element and one more: a comparison in float32 does not tell them apart, and one that
    drops the last bit not those of an even word. One of the words is next to 0, and so is p."""
    ones = _ones(arguments)
    streams = ((seed, words(ones.numel(), seed, OFFSET)) for seed in count(SEED))
    seed, drawn = next((seed, drawn) for seed, drawn in streams if drawn.min() < SMALL)
    for element in (int((drawn % 2 == 0).argmax()), int((drawn % 2 == 1).argmax()), int(drawn.argmin())):
        word = int(drawn[element])
        every = (_mask(call, arguments, ones, seed=seed, p=(word + more) / 2**32) for more in (0, 1))
        kept = [bool(mask.flatten()[element]) for mask in every]
        if kept != [True, False]:
            return f"kept for p = (word, word + 1)/2^32: {kept}; expected [True, False]"
    return None


def _share_is_kept(call, arguments, outputs, case):
    if case.dtype != "float32":  # the mask is the same
        return None
    p, ones = 0.25, arguments["x"].new_ones((32, 64))
    kept = _mask(call, arguments, ones, p=p).flatten()
    if torch.equal(kept[:1024], kept[1024:]):
        return "the second 1024 elements have the mask of the first"
    share = kept.double().mean().item()
    limit = 5 * math.sqrt(p * (1 - p) / ones.numel())
    return None if abs(share - (1 - p)) <= limit else f"{share:.3f} of the elements are kept for p = {p}"


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The bits of each element as an integer."""
    return x.contiguous().view(torch.int32 if x.element_size() == 4 else torch.int16)


def _nothing_is_left(call, arguments, outputs, case):
    """No NaN, no infinity, and no sign of a zero: dropped elements are +0, or the residual, to the bit."""
    x = arguments["x"]
    left = torch.ones_like(x) if "residual" in arguments else torch.zeros_like(x)
    given = {**arguments, **MASKED, **({"residual": left} if "residual" in arguments else {})}
    dropped = ~_mask(call, arguments, _ones(arguments))
    for p, where in ((0.5, dropped), (1.0, torch.ones_like(dropped))):
        found, right = call(**{**given, "p": p})[0][where], left[where]
        if not torch.equal(bits_of(found), bits_of(right)):
            what = "a NaN" if found.isnan().any() else "a number" if not torch.equal(found, right) else "a zero's sign"
            return f"p = {p}: of an element that is dropped something is left, {what}"
    return None


def _exact_scales(call, arguments, outputs, case):
    """By 1 and by 2 exactly, subnormals too, and the largest number to an infinity; by 10/9 in 16 bits of numbers whose
    products are far from a tie."""
    x = arguments["x"]
    plain = {"bias": None, "residual": torch.zeros_like(x)} if "residual" in arguments else {}
    kept = _mask(call, arguments, _ones(arguments))
    tenth = _mask(call, arguments, _ones(arguments), p=0.1)
    few = torch.full_like(x, 1.0)
    few[..., ::2] = 1.25
    most = torch.full_like(x, torch.finfo(x.dtype).max)
    wanted = [(0.0, x, x, torch.ones_like(kept)), (0.5, x, 2 * x, kept), (0.5, most, most * 2, kept)]
    if x.element_size() == 2:
        wanted.append((0.1, few, few.double() / 0.9, tenth))
    for p, given, answer, where in wanted:
        found = call(**{**arguments, **MASKED, **plain, "x": given, "p": p})[0]
        if broken := rounding.told(found[where], answer[where], "x/(1 - p)"):
            return f"p = {p}: {broken}, of those that are kept"
    return None


def with_words(sizes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`sizes` with the number of words of 32 bits for one bit an element."""
    return [{**size, "words": -(-math.prod(size["trailing"]) // 32)} for size in sizes]


def of_shapes_with_words(first: str) -> dict[str, Also]:
    """The single cases of shapes with the number of words of theirs."""
    every = of_shapes(ANY_RANK, first)
    return {name: replace(one, size=with_words([one.size])[0]) for name, one in every.items()}


def beyond_largest_of(operand: str, size: Mapping[str, Any]) -> dict[str, Also]:
    """Elements that are kept, four times as large."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {name: draw.normal(draw.shape(name)) for name in draw.operands}
        sign = draw.integers(draw.shape(operand), 0, 2) * 2 - 1
        return {**drawn, operand: sign * draw.of_largest(operand, 0.5, 1.0)}

    return beyond_largest(size, family, {"p": 0.75})


def words_fit(case: Case) -> bool:
    """Whether the size of a case has as many words as its elements take."""
    return with_words([case.size])[0] == case.size


def seen(case: Case) -> bool:
    """Whether a case shows more than that p = 1 drops everything."""
    return case.param["p"] < 1 or (case.contiguous and case.values in ("normal", "special"))


def invalid(*names: str) -> list[Invalid]:
    """Calls with one of the parameters `names` out of its range."""
    spoilt = {"p": (-0.1, 1.5, math.nan), "seed": (-1, 2**63), "offset": (-1, 2**63)}

    def call(name: str, value: float) -> Invalid:
        return Invalid(f"{name} is {value}", lambda a: {**a, name: value}, ValueError, rf"\b{name}\b")

    return [call(name, value) for name in names for value in spoilt[name]]


def eager(x: torch.Tensor, *, p: float, **stream: int) -> torch.Tensor:
    """torch's dropout, whose mask is another."""
    return F.dropout(x, p)
