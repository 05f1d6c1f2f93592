"""Contracts of ops that only move data: every element of an output is an element of an operand, or 0.

The answer is the reference applied to the operands, and it is compared bit by bit: nothing is rounded, the sign of 0,
subnormals and infinities arrive as they are. The families below give elements whose bits say where they come from.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Draw, Operand, Output, Property

FINITE = 0x7C00  # 16-bit patterns from 0 on that are finite numbers both of float16 and of bfloat16
PATTERNS = 2 * FINITE
BITS = {2: torch.int16, 4: torch.int32}

Family = Callable[[Draw], dict[str, torch.Tensor | None]]


def as_numbers(number: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The float64 values of `dtype` whose bits are those of `number`, integers >= 0: all finite, of either sign.

    In 16 bits numbers repeat after `PATTERNS`. In 32 bits the upper half says the same, and the lower one is never 0,
    so that whatever is stored in fewer bits on the way shows.
    """
    place = number % PATTERNS
    bits = torch.where(place < FINITE, place, place - FINITE - 2**15)  # the second half is negative
    if dtype.itemsize == 4:
        bits = bits * 2**16 + (number * 40503 % 2**15 * 2 + 1)
    return bits.to(BITS[dtype.itemsize]).view(dtype).to(torch.float64)


def tags(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Every element another number, from a random one on: whatever lands in the wrong place is seen."""
    first = draw.integers((1,), 0, PATTERNS).long()
    count = torch.Size(shape).numel()
    return as_numbers(first + torch.arange(count, device=first.device), draw.dtype).reshape(tuple(shape))


def row_tags(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Every element names its row: elements of other rows are seen where there are more elements than 16-bit tags."""
    first = draw.integers((1,), 0, PATTERNS).long()
    rows = first + torch.arange(shape[0] if len(shape) else 1, device=first.device)
    named = as_numbers(rows, draw.dtype).reshape(-1, *[1] * (len(shape) - 1))
    return named.expand(tuple(shape)).clone() if len(shape) else named.reshape(())


def extremes(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """−0, the smallest subnormals and the largest numbers: arithmetic on the way changes some."""
    return _some_of(draw, shape, _extremes(draw.dtype))


def specials(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """The same, with infinities and NaN, which are there however few elements there are: NaN in one alone."""
    rare = [torch.nan, torch.inf, -torch.inf]
    made = _some_of(draw, shape, [*_extremes(draw.dtype), *rare]).reshape(-1)
    places = draw.uniform((made.numel(),)).argsort()[: len(rare)]
    made[places] = torch.tensor(rare, dtype=made.dtype, device=made.device)[: len(places)]
    return made.reshape(tuple(shape))


def _extremes(dtype: torch.dtype) -> list[float]:
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    return [0.0, -0.0, least, -least, info.smallest_normal, info.max, -info.max, 1.0]


def _some_of(draw: Draw, shape: Sequence[int], kinds: Sequence[float]) -> torch.Tensor:
    chosen = draw.integers(shape, 0, len(kinds)).long()
    return torch.tensor(kinds, dtype=torch.float64, device=chosen.device)[chosen]


FAMILIES = {"tags": tags, "row_tags": row_tags, "extremes": extremes, "specials": specials}


def families(*moved: str, others: Callable[[Draw], Mapping[str, torch.Tensor]] = lambda draw: {}) -> dict[str, Family]:
    """The families of an op whose `moved` operands are filled with them; `others(draw)` draws the rest, indices say."""

    def family(make: Callable[[Draw, Sequence[int]], torch.Tensor]) -> Family:
        return lambda draw: {**{name: make(draw, draw.shape(name)) for name in moved}, **others(draw)}

    return {name: family(make) for name, make in FAMILIES.items()}


def moved(
    reference: Callable[..., Any],
    operands: Mapping[str, Operand],
    outputs: Mapping[str, Output],
    *,
    values: Mapping[str, Family],
    properties: Sequence[Property] = (),
    **more: Any,
) -> Contract:
    """The contract of an op that moves elements as `reference(*operands, **params)` does; `more` are its other fields.

    The cost model, unless given: one move for each element of an output, and each operand and output once.
    """

    def expect(inputs, params, *, dtype, compute=None):
        returned = reference(**inputs, **params)
        answers = returned if isinstance(returned, tuple) else (returned,)
        return {
            name: None if answer is None else Expected(answer, dtype=_own(outputs[name]), bitwise=True)
            for name, answer in zip(outputs, answers, strict=True)
        }

    return Contract(
        operands=operands,
        outputs=outputs,
        values=values,
        expect=expect,
        properties=list(properties),
        moves=True,
        **more,
    )


def _own(output: Output) -> torch.dtype | None:
    return output.dtype if isinstance(output.dtype, torch.dtype) else None


def relabels(*names: str) -> Property:
    """Property: other numbers in the operands `names` come out at the same places: what moves does not depend on what
    is moved. Elements of 16 bits are given other bits by an exclusive or, which keeps all that are equal equal."""

    def check(call, arguments, outputs, case):
        bits = BITS[case.torch_dtype.itemsize]
        given = {name: arguments[name].contiguous().view(bits) for name in names}
        changed = call(**{**arguments, **{name: (one ^ 3).view(case.torch_dtype) for name, one in given.items()}})
        for before, after in zip(outputs, changed, strict=True):
            if not torch.equal(before.contiguous().view(bits) ^ 3, after.contiguous().view(bits)):
                return "with other elements in the same places, others come out"
        return None

    return Property("moves whatever the elements are", check, values="tags", bitwise=True)
