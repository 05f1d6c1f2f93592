"""Laws that many ops obey, as properties: what the answers to several calls have to do with one another.

properties=[doubles("a", "x"), adjoint("a·x", "x", back), equals_op("attention", special, expected)]
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Case, Property

Arguments = Mapping[str, Any]
Call = Callable[..., tuple[torch.Tensor, ...]]
Elsewhere = Callable[[Case], Case]


def integers_of(tensor: torch.Tensor) -> torch.Tensor:
    """{0, 1} of the same shape and dtype, from the signs."""
    return (tensor > 0).to(tensor.dtype)


def doubles(*names: str) -> Property:
    """Twice an operand gives twice the output to the bit, where that is neither subnormal nor beyond the largest."""

    def check(call, arguments, outputs, case):
        for name in names:
            (twice,) = call(**{**arguments, name: 2 * arguments[name]})
            kept = (outputs[0].abs() >= torch.finfo(twice.dtype).tiny) & torch.isfinite(2 * outputs[0])
            if bool((twice != 2 * outputs[0])[kept].any()):
                return f"twice {name} does not give twice the output"
        return None

    return Property("doubles", check, bitwise=True)


def additive_on_integers(name: str) -> Property:
    """What x and 1 − x give adds up to what 1 gives, exactly: the smallest size has fewer than 256 terms."""

    def check(call, arguments, outputs, case):
        given = {n: integers_of(v) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
        parts = given[name], 1 - given[name], torch.ones_like(given[name])
        (part,), (rest,), (whole,) = (call(**{**given, name: value}) for value in parts)
        return None if torch.equal(part + rest, whole) else f"with {name} and 1 − {name} it adds up to another integer"

    return Property("additive on integers", check)


def of_one_memory(first: str, second: str) -> Property:
    """A matrix and its transpose that are views of one memory give what they give in two: the first number of both is
    the same, of which a kernel may take both for one operand. Left out where transposed operands are."""

    def check(call, arguments, outputs, case):
        x = arguments[first].contiguous()
        if arguments[second].shape == x.shape:  # both have to have one shape
            side = math.isqrt(x.numel())
            x = x.view(-1)[: side * side].view(side, side)
        there = call(**{**arguments, first: x, second: x.mT})[0].double()
        here = call(**{**arguments, first: x, second: x.mT.clone()})[0].double()  # which keeps the strides
        number = here.isfinite()
        if number.any() and not bool(((there - here).abs() <= here[number].abs().max() / 64)[number].all()):
            return f"{second} as the transpose of {first} in the same memory gives another answer than in its own"
        return None

    def transposed(case: Case) -> Case:
        return replace(case, layouts=tuple((name, "transposed") for name in case.layout))

    return Property("two views of one memory", check, elsewhere=transposed)


def adjoint(
    *names: str,
    back: Callable[[Call, Arguments, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]],
    exact: Callable[[Arguments, Case], Arguments],
) -> Property:
    """⟨y, op(x)⟩ = ⟨opᵀ(y), x⟩ to the bit, with x the operands `names`, one an output.

    `exact(arguments, case)` gives arguments with small integers, on which nothing is rounded;
    `back(call, arguments, y)` is opᵀ of any y of the outputs' shapes, made of calls of the kernel itself.
    """

    def check(call, arguments, outputs, case):
        given = exact(arguments, case)
        forward = call(**given)
        ys = tuple(integers_of(y.flip(-1)) for y in outputs)
        for name, there, y, here in zip(names, forward, ys, back(call, given, ys), strict=True):
            left = (there.double() * y.double()).sum().item()
            right = (given[name].double() * here.double()).sum().item()
            if left != right:
                return f"⟨y, op({name})⟩ is {left:g} and ⟨its transpose of y, {name}⟩ {right:g}, on integers"
        return None

    return Property("adjoint", check)


def equals_op(
    what: str,
    special: Callable[[Arguments, Case], Arguments],
    expected: Callable[[Arguments, Case], Mapping[str, Expected]],
    *,
    seen_as: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor,
    elsewhere: Elsewhere | None = None,
) -> Property:
    """With `special(arguments, case)` the op is `what`: each output lies in the budget that `expected`, of those
    arguments with their tensors in float64 on the CPU, gives it by name.

    `seen_as(name, output)` has an output in the shape that `what` gives it.
    """

    def check(call, arguments, outputs, case):
        given = special(arguments, case)
        exact = {n: v.detach().cpu().double() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        for (name, wanted), got in zip(expected(exact, case).items(), call(**given), strict=True):
            verdict = compare(seen_as(name, got), wanted, case.torch_dtype)
            if not verdict.ok:
                return f"{name} is not that of {what}: {verdict.message}"
        return None

    return Property(f"equals {what}", check, elsewhere=elsewhere)


def relabels(
    name: str, renamed: Callable[[Arguments, Case], Arguments], then: Callable[..., Any] = lambda outputs, case: outputs
) -> Property:
    """Other names for the same things: `renamed(arguments, case)` give, to the bit, the outputs that they gave before,
    or `then(outputs, case)` of those."""

    def check(call, arguments, outputs, case):
        again = call(**renamed(arguments, case))
        same = all(torch.equal(x, y) for x, y in zip(then(outputs, case), again, strict=True))
        return None if same else f"not so: {name}"

    return Property(name, check, bitwise=True)
