"""Contracts of ops that are linear in each of their floating operands: sums of products of elements, and no more.

    contract = multilinear(torch_dot, operands={"a": ..., "b": ...}, output="y", axes="", along="n", terms=..., ...)

The answer is `fn` on the operands in float64. The same function of their absolute values is the condition of each
element of the answer, and that of their squares says how the rounding of operands to tf32 adds up.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from touchstone.conformance.contracts._bounds_dots import counted, lossy
from touchstone.conformance.contracts._laws import additive_on_integers, doubles
from touchstone.conformance.spec import values
from touchstone.conformance.spec.budget import COMPUTE, EPS, Expected, Scalar, dot_extra
from touchstone.conformance.spec.contract import Also, Case, Contract, Draw, Invalid, Operand, Output
from touchstone.conformance.spec.layouts import BROADCASTS

Function = Callable[..., torch.Tensor]  # of the operands in order and the parameters by name
Terms = Callable[[Mapping[str, Any], Mapping[str, Any]], Scalar]  # of inputs and params: addends of an answer's element
Along = str | Callable[[Mapping[str, Any]], str]  # the summed axis, or a function of the parameters that names it
LONG = 4096  # terms from which on a budget for their sum is more than one of them
SHORT = 100  # terms at most where an overflow is a matter of the terms, not of their rounding
SPECIAL = ("one_nan", "other_nan", "one_inf", "opposite_infs", "zero_times_inf", "inf_times_zero")


def multilinear(
    fn: Function,
    *,
    operands: Mapping[str, Operand],
    output: str,
    axes: str | Callable[[Case], str],
    along: Along,
    terms: Terms,
    factors: Sequence[str] = (),
    **more: Any,
) -> Contract:
    """The contract of `fn`, whose operands are summed `along` an axis; `factors` are parameters that multiply.

    `more` are a contract's other fields, in place of those made here.
    """
    made: dict[str, Any] = {
        "values": families(operands, along),
        "expect": expectation(fn, output, terms, factors),
        "valid": informative(along),
        "exact": {"binary": [output]},
        "properties": [doubles(*operands), additive_on_integers(next(iter(operands)))],
        "invalid": invalid_calls(operands),
    }
    return Contract(operands=operands, outputs={output: Output(axes)}, **{**made, **more})


def expectation(
    fn: Function, output: str, terms: Terms, factors: Sequence[str] = ()
) -> Callable[..., dict[str, Expected]]:
    """The `expect` of a contract."""

    def of(inputs: Mapping[str, Any], params: Mapping[str, Any], change: Callable[[Any], Any]) -> torch.Tensor:
        changed = {name: change(value) if name in factors else value for name, value in params.items()}
        return fn(*(change(t) for t in inputs.values()), **changed)

    def expect(inputs, params, *, dtype, compute=None):
        answer, size = (of(inputs, params, change) for change in (lambda v: v, abs))
        squares, count = of(inputs, params, lambda v: v * v), terms(inputs, params)
        extra: Scalar = dot_extra(lossy(compute, dtype), answer, squares)
        if compute == "half_sum":
            extra = in_half_precision(count, size)
        return {output: Expected(answer, parts=[(counted(count, size, squares), size)], extra=extra)}

    return expect


def in_half_precision(count: Scalar, size: torch.Tensor) -> torch.Tensor:
    """The error of products and running sums that are rounded to float16: each by half an eps of what was added."""
    number = torch.as_tensor(count, dtype=torch.float64)
    return COMPUTE["half_sum"] * (number + 1) * size + number * 2.0**-25


def _letter(along: Along, params: Mapping[str, Any]) -> str:
    return along if isinstance(along, str) else along(params)


def families(operands: Mapping[str, Operand], along: Along) -> dict[str, Callable[[Draw], dict[str, torch.Tensor]]]:
    """The families of values; each is drawn operand by operand, with the axis summed over first."""
    found: dict[str, Callable[[Draw], dict[str, torch.Tensor]]] = {}
    letters = {name: str(operand.axes).split() for name, operand in operands.items()}
    matrix = any(len(axes) > 1 for axes in letters.values())

    def family(make: Callable[[Draw, tuple[int, ...], bool], torch.Tensor]) -> Callable[[Draw], Any]:
        def draw_all(draw: Draw) -> dict[str, torch.Tensor]:
            summed, drawn = _letter(along, draw.param), {}
            for position, (name, axes) in enumerate(letters.items()):
                place = axes.index(summed) if summed in axes else 0
                shape = draw.shape(name)
                turned = (shape[place], *shape[:place], *shape[place + 1 :])
                drawn[name] = make(draw, turned, position == 0).movedim(0, place)
            return drawn

        return draw_all

    for make in (_normal, _binary, _cancelling, _ascending, *((_row_scales,) if matrix else ()), _positive):
        found[make.__name__[1:]] = family(make)
    found["tiny"] = family(lambda draw, shape, first: draw.normal(shape, 2.0 ** -(17 / len(operands))))
    found["one_nan"] = family(_with({0: math.nan}, {}))
    if len(operands) > 1:
        found["other_nan"] = family(_with({}, {0: math.nan}))
    found["one_inf"] = family(_with({0: math.inf}, {}))
    found["opposite_infs"] = family(_with({0: math.inf, -1: -math.inf}, {0: 1.0, -1: 1.0}))
    if len(operands) > 1:
        found["zero_times_inf"] = family(_with({-1: 0.0}, {-1: math.inf}))
        found["inf_times_zero"] = family(_with({-1: math.inf}, {-1: 0.0}))
    found["overflowing"] = family(_overflowing(len(operands)))
    return found


def sparse(draw: Draw) -> dict[str, torch.Tensor | None]:
    """The first operand, a vector, is 0 but for some whole numbers, the others are 1: over millions of terms the budget
    is less than any one of them."""
    drawn: dict[str, torch.Tensor | None] = {n: torch.ones(draw.shape(n), dtype=torch.float64) for n in draw.operands}
    few = draw.integers(draw.shape(draw.operands[0]), 1, 4)
    few[torch.arange(len(few)) % 997 != 0] = 0
    few[-1:] = 3
    return {**drawn, draw.operands[0]: few}


def beyond_float16(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Operands of about 2^40, 2^-40 in turn: bfloat16 holds them and their sums, float16 does not."""
    return {name: draw.normal(draw.shape(name), 2.0 ** (40 * (-1) ** turn)) for turn, name in enumerate(draw.operands)}


def sums_beyond_largest(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Sums of terms of one sign, that of a row of the first operand, which takes turns."""
    drawn: dict[str, torch.Tensor | None] = {n: draw.uniform(draw.shape(n), 1.0, 2.0) for n in draw.operands}
    first = draw.of_largest(draw.operands[0], 0.25, 0.5)
    if first.ndim > 1:
        first[1::2] *= -1
    return {**drawn, draw.operands[0]: first}


def small_addends(first: str, along: int) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    """Terms of operand `first` along an axis: a large one, and many that are each less than half a unit of it in 16
    bits, and 1/128 of it together. The others are 1."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {
            name: torch.ones(draw.shape(name), dtype=torch.float64) for name in draw.operands
        }
        shape = draw.shape(first)
        terms = torch.full((shape[along],), values.small_addend(shape[along]), dtype=torch.float64)
        terms[:1] = values.LARGE_ADDEND
        drawn[first] = (terms if along == len(shape) - 1 else terms[:, None]).expand(shape).clone()
        return drawn

    return family


def just_below(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Terms of the first operand whose sum is a twentieth of a unit below a number of a dtype of 16 bits, where a unit
    is the largest part of it: cut instead of rounded, it is nearly a whole one off. The other operands are 1."""
    first, *others = draw.operands
    drawn: dict[str, torch.Tensor | None] = {n: torch.ones(draw.shape(n), dtype=torch.float64) for n in others}
    (count,) = draw.shape(first)
    terms = torch.full((count,), 64 * 0.95 * EPS[draw.dtype] / (count - 1), dtype=torch.float64)
    terms[:1] = 64
    return {first: terms, **drawn}


def each_just_below(size: Mapping[str, int]) -> dict[str, Also]:
    """Single cases of `just_below`, where the answer is one number: of many some are rounded up by as much."""
    return {f"just_below_{dtype}": Also(size, just_below, dtype=dtype) for dtype in ("float16", "bfloat16")}


LANES = 1024  # that add up every so-many-th term, or fewer
OF_LANES = LANES + 2**15 + 3  # terms
OF_BLOCKS = 2 * 4096 + 3  # terms: of blocks of up to 4096 each has a sum that stands beside a smaller answer


def small_addends_of_lanes(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Ones, for each of `LANES` lanes its first term, and then along the last axis many terms that are each less than
    half a unit of 1 in 16 bits: lost by a lane that adds up in these, and by one sum of all too. The other operands
    are 1."""
    first, *others = draw.operands
    drawn: dict[str, torch.Tensor | None] = {
        name: torch.ones(draw.shape(name), dtype=torch.float64) for name in (first, *others)
    }
    terms = torch.full(draw.shape(first), 0.4 * 2.0**-10, dtype=torch.float64)
    terms[..., :LANES] = 1
    return drawn | {first: terms}


def _normal(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    """The last term counts more than the others: a lost tail shows in bfloat16 too. In a long sum, whose budget is more
    than that, the second half leans to one side, so that no part of it can be left out."""
    x = draw.normal(shape)
    if shape[0] > LONG:
        x[shape[0] // 2 :] += 0.25
    x[-1:] = x[-1:] + 3.0 if first else 4 * x[-1:].sign() + x[-1:]
    return x


def _binary(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    """{0, 1}: every partial sum is exact, so the answer must be bit-equal in any order."""
    return draw.integers(shape, 0, 2)


def _cancelling(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    """Terms are positive in the first half and about minus that in the second: partial sums grow with their number.

    A lost or repeated tile is far off, and so is an accumulator of less than float32.
    """
    x, half = draw.uniform(shape, 0.5, 1.5), shape[0] // 2
    x[shape[0] - half :] = -x[:half] * (1 + 2**-6 * draw.uniform((half, *shape[1:]))) if first else x[:half]
    return x


def _ascending(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    """Terms grow along the sum: the tiles are unlike one another, the last one dominates."""
    ramp = torch.exp2(torch.linspace(-4.0, 3.0, shape[0], dtype=torch.float64)) if first else torch.ones(shape[0])
    return draw.normal(shape) * ramp.reshape(-1, *[1] * (len(shape) - 1))


def _row_scales(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    """Sums of very different size beside one another: a term of another one's is far off."""
    x = draw.normal(shape)
    return x * torch.exp2(torch.arange(shape[1], dtype=torch.float64) % 9 - 4) if len(shape) == 2 else x


def _positive(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
    return draw.uniform(shape, 0.5, 1.5)


def _with(of_first: Mapping[int, float], of_others: Mapping[int, float]) -> Callable[..., torch.Tensor]:
    """Normal values but for two places along the sum, in its last row: 0 stands for the middle, -1 for the last."""

    def make(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
        x = draw.normal(shape)
        for place, value in (of_first if first else of_others).items():
            if x.numel():
                x[place if place or shape[0] < 2 else shape[0] // 2 - 1].view(-1)[-1] = value
        return x

    return make


def _overflowing(operands: int) -> Callable[..., torch.Tensor]:
    """Answers beyond the largest float16, and in every second row half that."""

    def make(draw: Draw, shape: tuple[int, ...], first: bool) -> torch.Tensor:
        x = draw.uniform(shape, 0.75, 1.25) * (1.5 * torch.finfo(torch.float16).max / shape[0]) ** (1 / operands)
        if first and len(shape) > 1:
            x[:, 1::2] /= 2
        return x

    return make


def informative(along: Along) -> Callable[[Case], bool]:
    """Rule out values of empty operands, overflows of float16 that are a matter of rounding or of other dtypes, and
    special values that a broadcast repeats or leaves out."""

    def valid(case: Case) -> bool:
        if not case.filled:
            return case.values == "normal"
        if case.values == "overflowing":
            return case.dtype == "float16" and case.size[_letter(along, case.param)] <= SHORT
        return case.values not in SPECIAL or not any(layout in BROADCASTS for _, layout in case.layouts)

    return valid


def invalid_calls(operands: Mapping[str, Operand]) -> list[Invalid]:
    """Calls with one operand spoilt, each of them in the ways that its place allows."""
    first, *others = operands
    calls = [
        _spoilt(first, "is float64", torch.Tensor.double, TypeError),
        _spoilt(first, "is int32", torch.Tensor.int, TypeError),
        _spoilt(first, "is no tensor", torch.Tensor.tolist, TypeError),
        _spoilt(first, "has an axis more", lambda t: t[None], ValueError),
    ]
    for name in others:
        calls += [
            _spoilt(name, "has an axis more", lambda t: t[None], ValueError),
            _spoilt(name, "is one too long", lambda t: torch.cat([t, t[:1]]), ValueError),
            _spoilt(name, "has another dtype", torch.Tensor.bfloat16, TypeError),
            _spoilt(name, "is elsewhere", lambda t: t.to("meta"), ValueError),
            _spoilt(name, "is None", lambda t: None, TypeError),
        ]
    return calls


def _spoilt(name: str, how: str, change: Callable[[torch.Tensor], Any], error: type[Exception]) -> Invalid:
    return Invalid(f"{name} {how}", lambda a: {**a, name: change(a[name])}, error, rf"\b{name}\b")
