"""Contracts of functions that act element by element: a new one is its formula and one line.

    contract = pointwise(torch_squared_relu, ["x"])

The formula takes the operands by name, in float64, and the op's parameters. A kernel computes it in float32 and rounds
once; how far off it may be is |y| + sum |dy/dx_i · x_i| in units of float32's rounding, by automatic differentiation,
unless `error` says otherwise: where terms cancel within the formula.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.budget import EPS32, C, Expected, Scalar, finite
from touchstone.conformance.spec.contract import (
    Also,
    Case,
    Contract,
    Draw,
    Invalid,
    Operand,
    Output,
    Regular,
    each_of_one,
)
from touchstone.conformance.spec.values import lift_tail

Tensors = Mapping[str, torch.Tensor | None]
Outputs = tuple[torch.Tensor, ...]
Family = Callable[[Draw], dict[str, torch.Tensor | None]]

MATRICES = "rows cols"
ANY_RANK = "..."
SIZES: dict[str, list[dict[str, Any]]] = {
    MATRICES: [
        {"rows": rows, "cols": cols}
        for rows, cols in [(3, 33), (1, 1), (0, 5), (5, 0), (24, 24), (17, 64), (7, 127), (2, 16411), (1031, 3)]
    ],
    ANY_RANK: [
        {"trailing": shape}
        for shape in [(3, 33), (), (1,), (0,), (7,), (24, 24), (1025,), (2, 3, 5, 7), (17, 64), (2, 32771)]
    ],
}
REGULAR = {
    MATRICES: bounds_rows.REGULAR,
    ANY_RANK: Regular([{"trailing": tuple(size.values())} for size in bounds_rows.REGULAR.sizes]),
}
# of any rank the longest of SIZES has as many elements already
BEYOND_GRID: dict[str, list[dict[str, Any]]] = {MATRICES: [{"rows": 69001, "cols": 2}], ANY_RANK: []}
# more elements than 2^20, and than 2^16 in a row; more rows than a part of them; one row, and one column
SHAPES = {
    MATRICES: {
        "many_elements": Also({"rows": 17, "cols": 65539}),
        "many_rows": Also({"rows": 301, "cols": 24}),
        **each_of_one(SIZES[MATRICES][0]),
    },
    ANY_RANK: {
        "many_elements": Also({"trailing": (17, 65539)}),
        "many_rows": Also({"trailing": (301, 24)}),
        **{f"one_{axis}": Also({"trailing": shape}) for axis, shape in {"row": (1, 33), "column": (33, 1)}.items()},
    },
}
FIVE_AXES = {"trailing": (2, 3, 2, 5, 3)}
RANKS = {
    "transposed": 2,
    "transposed_sliced": 2,
    "sliced": 1,
    "broadcast": 1,
    "broadcast_last": 1,
}  # axes that a layout has to have
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)


def pointwise(
    fn: Callable[..., Any],
    operands: Sequence[str] | Mapping[str, Operand],
    *,
    outputs: Sequence[str] = ("y",),
    axes: str = MATRICES,
    params: Mapping[str, Sequence[Any]] | None = None,
    error: Callable[[Tensors, Mapping[str, Any]], Sequence[torch.Tensor]] | None = None,
    stored: Sequence[Callable[..., Any]] | Sequence[Sequence[Callable[..., Any]]] = (),
    approximate: Callable[[Tensors, Mapping[str, Any]], Sequence[Scalar]] | None = None,
    values: Mapping[str, Family] | None = None,
    special: Sequence[float] = SPECIAL,
    valid: Callable[[Case], bool] = lambda case: True,
    invalid: Sequence[Invalid] = (),
    cost: float = 1,
    **fields: Any,
) -> Contract:
    """The contract of `fn(**operands, **params)`, which gives each of `outputs` element by element.

    `operands` of these `axes`, "rows cols" or "..." for any rank, or an `Operand` each: (cols,) is the same vector for
    every row, and may be None where its layouts have "none". `error` gives for each output, from operands and
    parameters, the absolute error in units of float32's rounding. `stored`: an intermediate result, which a kernel may
    round to the operands' dtype (another answer), then `fn` of it and of all the rest, and perhaps its error, as
    `error` gives it; or several of these, each an answer of its own. `approximate` gives the absolute error that
    `compute="approximate"` allows besides.

    `values` are families besides those of `FAMILIES` and the one in which operands hold `special` values; `cost` is
    the operations of an element. Other `fields` are the contract's own.
    """
    if not isinstance(operands, Mapping):
        operands = {name: Operand(axes) for name in operands}
    whole = tuple(name for name, operand in operands.items() if operand.axes == axes)
    drawn = {**FAMILIES, **(values or {})}
    drawn.setdefault("special", with_special(special, drawn["normal"]))
    between = [stored] if stored and callable(stored[0]) else stored

    def expect(inputs, params, *, dtype, compute=None):
        answers = _tuple(fn(**inputs, **params))
        errors = conditions(fn, inputs, params) if error is None else error(inputs, params)
        extras: Sequence[Scalar] = [0.0] * len(answers)
        if compute == "approximate" and approximate is not None:
            extras = approximate(inputs, params)
        found = {
            name: Expected(answer, parts=[(1, finite(size))], extra=extra)
            for name, answer, size, extra in zip(outputs, answers, errors, extras, strict=True)
        }
        for one in between if dtype is not torch.float32 else ():
            for name, (answer, spread) in zip(outputs, _after(one, inputs, params, dtype), strict=True):
                extra = found[name].extra + spread
                found[name].alternatives.append(Expected(answer, parts=found[name].parts, extra=extra))
        return found

    def informative(case: Case) -> bool:
        shapes = [contract.operand_shape(name, case) for name in operands]
        for (_, layout), shape in zip(case.layouts, shapes, strict=True):
            if len(shape) < RANKS.get(layout, 0):
                return False
        if not case.filled:
            return case.values == "normal" and all(layout in bounds_rows.SHORT for _, layout in case.layouts)
        if case.values == "special" and any(case.layout[name] in layouts.BROADCASTS for name in whole):
            return False
        return valid(case)

    def elements(size: Mapping[str, Any]) -> int:
        return math.prod(contract.shape(axes, size))

    contract = Contract(
        **{
            "operands": operands,
            "outputs": {name: Output(axes) for name in outputs},
            "sizes": SIZES[axes],
            "regular": REGULAR[axes],
            "beyond_grid": BEYOND_GRID[axes],
            "also": of_shapes(axes, *whole) | special_of_each(axes, params or {}),
            "values": drawn,
            "params": params or {},
            "valid": informative,
            "expect": expect,
            "large": common.ROWS if axes == MATRICES else [{"trailing": tuple(size.values())} for size in common.ROWS],
            "flops": lambda size, param: cost * elements(size),
            "invalid": [*_invalid(operands, whole, axes), *invalid],
            **fields,
        }
    )
    return contract


def of_shapes(axes: str, *operands: str) -> dict[str, Also]:
    """`SHAPES`, and one of as many rows, with a gap between them, as there are elements from one to the next; of any
    rank also a case of more axes than kernels with strides have, not to be merged in the first of the operands."""
    rows, cols = 17 + layouts.GAP, 17
    size: dict[str, Any] = {"rows": rows, "cols": cols} if axes == MATRICES else {"trailing": (rows, cols)}
    found = SHAPES[axes] | {"as_many_rows_as_a_pitch": Also(size, layouts=dict.fromkeys(operands, "sliced"))}
    return found if axes == MATRICES else found | {"five_axes": Also(FIVE_AXES, layouts={operands[0]: "transposed"})}


def across_rows(params: Mapping[str, Sequence[Any]]) -> dict[str, Also]:
    """Single cases, for each option of a parameter, of rows that are no whole vectors but have, all together, a number
    of elements that is: what moves several at once goes from one row to the next, and from column to column."""
    options = [{name: each} for name, every in params.items() for each in every if isinstance(each, str)]
    return {
        "_".join(["across_rows", *one.values()]): Also({"rows": 16, "cols": 33}, params=one) for one in options or [{}]
    }


def special_of_each(axes: str, params: Mapping[str, Sequence[Any]]) -> dict[str, Also]:
    """Single cases of the special values for each option of each parameter: another function keeps another NaN."""
    return {
        f"special_{option}": Also(SIZES[axes][0], "special", {name: option})
        for name, options in params.items()
        for option in options
        if isinstance(option, str)
    }


def conditions(fn: Callable[..., Any], inputs: Tensors, params: Mapping[str, Any]) -> list[torch.Tensor]:
    """|y| + sum |dy/dx_i · x_i| of each output, by automatic differentiation of `fn` in float64."""
    # Forward mode: backward starts threads, which the child of a process that has them lacks.
    found = [answer.abs() for answer in _tuple(fn(**inputs, **params))]
    for name, tensor in inputs.items():
        if tensor is None:
            continue
        with warnings.catch_warnings(), forward_ad.dual_level():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of torch.jit.script, at the first use
            dual = forward_ad.make_dual(tensor, tensor)
            for at, answer in enumerate(_tuple(fn(**{**inputs, name: dual}, **params))):
                change = forward_ad.unpack_dual(answer).tangent  # dy/dx_i · x_i
                found[at] = found[at] if change is None else found[at] + finite(change).abs()
    return found


def _after(stored, inputs: Tensors, params: Mapping[str, Any], dtype: torch.dtype) -> list[Outputs]:
    """Each answer with the intermediate result rounded to `dtype`, and what a neighbour of it in that dtype would
    change: float32's error can send it there."""
    first, rest, *own = stored
    middle = first(**inputs, **params)
    (condition,) = own[0](inputs, params) if own else conditions(first, inputs, params)
    noise = C * EPS32 * 3 * finite(condition)
    below, near, above = (
        _tuple(rest(value.to(dtype).to(torch.float64), **inputs, **params))
        for value in (middle - noise, middle, middle + noise)
    )
    spreads = [
        1.25 * torch.maximum(finite(high - at).abs(), finite(at - low).abs())
        for low, at, high in zip(below, near, above, strict=True)
    ]
    return list(zip(near, spreads, strict=True))


def _tuple(answers: Any) -> Outputs:
    return answers if isinstance(answers, tuple) else (answers,)


def each(make: Callable[[Draw, Sequence[int]], torch.Tensor]) -> Family:
    """The family that draws every operand by `make`, the last element of each lifted."""
    return lambda draw: {name: lift_tail(make(draw, draw.shape(name)), 1.0) for name in draw.operands}


def wide(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Up to ±100: where an exponential of float32 overflows."""
    return {name: draw.uniform(draw.shape(name), -100.0, 100.0) for name in draw.operands}


def near_zero(draw: Draw) -> dict[str, torch.Tensor | None]:
    """About 2^-20: what cancels next to 1, and subnormals of float16."""
    return {name: draw.normal(draw.shape(name), 2.0**-20) for name in draw.operands}


def integers(draw: Draw) -> dict[str, torch.Tensor | None]:
    """-11 to 11: products and sums of two are exact in every dtype."""
    return {name: draw.integers(draw.shape(name), -11, 12) for name in draw.operands}


def with_special(
    special: Sequence[float],
    base: Family | None = None,
    without: Sequence[str] = (),
    steep: tuple[str, float] | None = None,
) -> Family:
    """Values of `base` (None: normal ones), and `special` ones at every seventh element of each operand but those
    `without`: where `base` reaches the tails of a function, so does the one case that each function has at level quick.
    At every seventh more all of these operands are special: 0 beside an infinity.

    `steep`: an operand, and what it holds beside what is not finite, where its function has a slope: where that is 0, a
    product with it is NaN in one form and 0 in another.
    """

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn: dict[str, torch.Tensor | None] = {} if base is None else base(draw)
        if base is None:
            drawn.update((name, draw.normal(draw.shape(name))) for name in draw.operands)
        for turn, name in enumerate(draw.operands):
            given = drawn[name]
            if given is None:
                continue
            values = given.contiguous()
            flat = values.view(-1)
            at = flat[turn % 7 :: 7]
            if name not in without:
                which = draw.integers(at.shape, 0, len(special)).long()
                if len(which) > len(special):  # each of them once
                    which[: len(special)] = torch.arange(len(special))
                at.copy_(torch.tensor(special, dtype=torch.float64)[which])
                met = flat[6::7]
                number = torch.arange(len(met))
                which = (number // len(special) ** turn + (number if turn else 0)) % len(special)
                met.copy_(torch.tensor(special, dtype=torch.float64)[which])
            drawn[name] = values
        if steep is not None and (sloped := drawn[steep[0]]) is not None:
            for name, beside in drawn.items():
                if name != steep[0] and beside is not None and beside.shape == sloped.shape:
                    sloped[~beside.isfinite()] = steep[1]
        return drawn

    return family


def overflowing(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Products of two operands far beyond the largest float16, and in every second element far below it."""
    found: dict[str, torch.Tensor | None] = {}
    for name in draw.operands:
        drawn = draw.uniform(draw.shape(name), 320.0, 400.0).contiguous()
        drawn.view(-1)[1::2] *= 0.4
        found[name] = drawn
    return found


FAMILIES: dict[str, Family] = {
    "normal": each(lambda draw, shape: draw.normal(shape, 2.0)),
    "wide": wide,
    "near_zero": near_zero,
    "integers": integers,
}


def with_large(operand: str, bends: Sequence[float] = (), shift: str | None = None) -> Family:
    """`normal`, but every fifth element of `operand` up to ±100, some of them above 90: where exponentials overflow,
    whatever the parameters; and in every sixth column `bends` in turn, to which `shift` adds nothing there."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn = FAMILIES["normal"](draw)
        flat = draw.normal(draw.shape(operand), 2.0).contiguous().view(-1)
        flat[1::5] = draw.uniform(flat[1::5].shape, -100.0, 100.0)
        flat[1::15] = draw.uniform(flat[1::15].shape, 90.0, 100.0)
        wide = flat.reshape(draw.shape(operand))
        if bends:
            at = wide[..., 2:-1:6]
            turns = torch.arange(at.shape[0])[:, None] + torch.arange(at.shape[1])
            at.copy_(torch.tensor(bends, dtype=torch.float64)[turns % len(bends)])
        drawn[operand] = lift_tail(wide, 1.0)
        vector = None if shift is None else drawn[shift]
        if vector is not None:
            vector[2:-1:3] = 0
        return drawn

    return family


def _invalid(operands: Mapping[str, Operand], whole: Sequence[str], axes: str) -> list[Invalid]:
    vectors = [name for name in operands if name not in whole]
    optional = [name for name, operand in operands.items() if operand.optional]
    calls = bounds_rows.invalid_calls(whole[0], whole[1:], vectors, optional)
    return calls if axes == MATRICES else [call for call in calls if "is 1-D" not in call.name]
