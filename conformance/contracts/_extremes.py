"""What the contracts of reductions to a sum, a maximum or a minimum share beyond those of sums: extremes are exact."""

import math
from collections.abc import Callable

import torch

from touchstone.conformance.contracts import _multilinear as multilinear
from touchstone.conformance.contracts._laws import integers_of
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Case, Draw, Property
from touchstone.conformance.spec.layouts import BROADCASTS

EXTREMES = ("max", "min")


def expectation(fn: multilinear.Function, output: str, terms: multilinear.Terms) -> Callable[..., dict[str, Expected]]:
    """The `expect` of a contract: a budget for sums, the bits of one of the elements for extremes."""
    of_sums = multilinear.expectation(fn, output, terms)

    def expect(inputs, params, *, dtype, compute=None):
        if params["function"] == "sum":
            return of_sums(inputs, params, dtype=dtype, compute=compute)
        answer = fn(*inputs.values(), **params)
        return {output: Expected(answer, bitwise=not bool((answer == 0).any()))}  # of two zeros either will do

    return expect


def _below_zero(draw: Draw) -> dict[str, torch.Tensor]:
    """All below zero: a maximum that starts at 0, or pads with it, is 0. The extreme is the last, along any axis."""
    x = -draw.uniform(draw.shape("x"), 0.5, 1.5)
    last = {"max": -0.25, "min": -2.0}.get(draw.param["function"])
    if last is not None and x.numel():
        x[..., -1] = last
        x[-1] = last
    return {"x": x}


def above_zero(draw: Draw) -> dict[str, torch.Tensor | None]:
    """All above zero: a minimum that starts at 0, or pads with it, is 0. The minimum is the last, along any axis."""
    x = draw.uniform(draw.shape("x"), 0.5, 1.5)
    x[..., -1] = x[-1] = 0.25
    return {"x": x}


def negative_zero(draw: Draw) -> dict[str, torch.Tensor | None]:
    """One -0.0 among numbers below zero, halfway along any axis: the maximum, but the least where bits are compared as
    integers, as atomics do."""
    x = -draw.uniform(draw.shape("x"), 0.5, 1.5)
    x[..., x.shape[-1] // 2] = -0.0
    x[len(x) // 2] = -0.0
    return {"x": x}


def _worst(draw: Draw) -> dict[str, torch.Tensor]:
    """Nothing but the infinity that every number beats: what starts at the largest finite number, or at a sentinel,
    ends there."""
    value = {"max": -math.inf, "min": math.inf}.get(draw.param["function"], math.inf)
    return {"x": torch.full(draw.shape("x"), value, dtype=torch.float64)}


def infinities(draw: Draw) -> dict[str, torch.Tensor | None]:
    """An infinity that is the extreme, of the first of the results and of the last, along any axis."""
    x = draw.normal(draw.shape("x"))
    x.view(-1)[0] = x.view(-1)[-1] = {"min": -math.inf}.get(draw.param["function"], math.inf)
    return {"x": x}


def late_nan(draw: Draw) -> dict[str, torch.Tensor | None]:
    """One NaN, behind three quarters: where parts are brought together by a maximum that drops it, it is lost though
    each part keeps its own."""
    x = draw.normal(draw.shape("x"))
    x.view(-1)[3 * x.numel() // 4] = math.nan
    return {"x": x}


FAMILIES = {"below_zero": _below_zero, "worst": _worst}


def valid(along: multilinear.Along, sums: Callable[[Case], bool]) -> Callable[[Case], bool]:
    """Rule out extremes of nothing, and infinities that a layout could not change."""

    def check(case: Case) -> bool:
        letter = along if isinstance(along, str) else along(case.param)
        if case.param["function"] != "sum" and not case.size[letter]:
            return False
        if case.values == "worst":  # a sum of infinities says nothing that one of them does not
            return case.param["function"] != "sum" and not any(layout in BROADCASTS for _, layout in case.layouts)
        return sums(case)

    return check


def duality(name: str) -> Property:
    """min x = −max(−x), to the bit."""

    def check(call, arguments, outputs, case):
        (least,) = call(**{**arguments, "function": "min"})
        (most,) = call(**{**arguments, name: -arguments[name], "function": "max"})
        return None if torch.equal(least, -most) else "min x is not -max(-x)"

    return Property("extremes mirror", check)


def keeps_special_values(name: str) -> Property:
    """A NaN wins wherever it stands, and no maximum or minimum is a number that the elements do not have; along either
    axis where there are two."""

    def check(call, arguments, outputs, case):
        axes = (-1, 0) if "axis" in arguments else (None,)
        found = (_kept(call, arguments if axis is None else {**arguments, "axis": axis}, name) for axis in axes)
        return next(filter(None, found), None)

    return Property("special values", check)


def _kept(call, arguments, name: str) -> str | None:
    x = arguments[name]
    for function, sign in (("max", -1), ("min", 1)):
        far = sign * (x.abs() + 1)
        (end,) = call(**{**arguments, name: far, "function": function})
        every = () if "axis" not in arguments else (arguments["axis"],)
        if not torch.equal(end, (far.amax if function == "max" else far.amin)(*every)):
            return f"{function} of numbers {'above 1' if sign > 0 else 'below -1'} is another number"
        (end,) = call(**{**arguments, name: torch.full_like(x, sign * math.inf), "function": function})
        if not bool((end == sign * math.inf).all()):
            return f"{function} of nothing but {sign * math.inf} is another number"
        for place in (0, -1):
            spoilt = x.clone()
            spoilt.view(-1)[place] = math.nan
            if not bool(call(**{**arguments, name: spoilt, "function": function})[0].view(-1)[place].isnan()):
                return f"{function} loses a NaN that is the {'last' if place else 'first'} element"
    return None


def order_does_not_matter(name: str, axis: int) -> Property:
    """The elements backwards have the same maximum, and of integers the same sum, to the bit."""

    def check(call, arguments, outputs, case):
        integers = integers_of(arguments[name])
        for function, x in (("max", arguments[name]), ("sum", integers)):
            given = {**arguments, "function": function}
            there, back = (call(**{**given, name: t})[0] for t in (x, x.flip(axis)))
            if not torch.equal(there, back):
                return f"{function} of {name} backwards is another"
        return None

    return Property("order does not matter", check)
