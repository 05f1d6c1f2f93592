"""Value families that several contracts share. Each takes a `Draw` and a shape and returns float64 values.

A family exists because a class of wrong kernels passes without it; its docstring names the class. Signal sits in the
last row and the last column, so that a lost tail shows.
"""

from collections.abc import Callable, Sequence

import torch

from touchstone.conformance.spec.contract import Draw

Shape = Sequence[int]


LARGE_ADDEND = 512.0


def small_addend(terms: int) -> float:
    """What so many terms, of which the first is LARGE_ADDEND, are beside it: together 1/128 of it. Of more than 4096, a
    tile of 64 is less than half a unit of the first in float16."""
    return LARGE_ADDEND / 128 / max(1, terms)


def lift_tail(x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
    """Add `by` to the last element of the last axis, so that it counts in whatever is summed along it."""
    if x.ndim and x.numel():
        x[..., -1] += by
    return x


def lift_square(x: torch.Tensor, unit: float = 1.0) -> torch.Tensor:
    """Add so many `unit`s (the scale of x) to the last element that it makes some percent of a row's sum of squares."""
    return lift_tail(x, unit * max(3.0, x.shape[-1] ** 0.5 / 4))


def normal(draw: Draw, shape: Shape) -> torch.Tensor:
    return draw.normal(shape)


def large(draw: Draw, shape: Shape) -> torch.Tensor:
    """Large values with an offset: no max subtraction, one-pass variance, overflow of exp."""
    return draw.normal(shape, 20.0, 200.0)


def shifted_negative(draw: Draw, shape: Shape) -> torch.Tensor:
    """All below zero: padding lanes with 0 instead of -inf win the maximum."""
    return draw.normal(shape, 1.0, -30.0)


def ascending(draw: Draw, shape: Shape) -> torch.Tensor:
    """Rising along the last axis: the running maximum changes in every tile, so a missing rescale shows."""
    n = shape[-1] if len(shape) else 1
    ramp = torch.linspace(-4.0, 8.0, n, dtype=torch.float64) if n > 1 else torch.zeros(n, dtype=torch.float64)
    return draw.normal(shape, 0.25) + ramp


def low_weights(draw: Draw, shape: Shape, along: int = -1) -> torch.Tensor:
    """0 in the first place along an axis and about 9 less in the others: as an exponent one of these is next to
    nothing, and thousands are half of the sum."""
    x = draw.normal(shape, 0.25, -9.0)
    x.narrow(along, 0, min(1, x.shape[along])).zero_()
    return x


def mean_offset(draw: Draw, shape: Shape) -> torch.Tensor:
    """Mean far above the spread (3000 to 1, as far as the dtype resolves it): cancellation in a one-pass variance."""
    mean, scale = {torch.float32: (3000.0, 1.0), torch.float16: (1000.0, 1.0)}.get(draw.dtype, (100.0, 4.0))
    return draw.normal(shape, scale, mean)


def tiny(draw: Draw, shape: Shape) -> torch.Tensor:
    """A variance about as large as eps: eps left out, hard-coded, squared, or outside the root."""
    scale = draw.param.get("eps", 1e-4) ** 0.5
    return lift_square(draw.normal(shape, scale), scale)


def positive(draw: Draw, shape: Shape) -> torch.Tensor:
    return draw.uniform(shape, 0.5, 1.5)


def binary(draw: Draw, shape: Shape) -> torch.Tensor:
    """{0, 1}: every partial sum is an exact integer, so the answer must be bit-equal in any order of summation."""
    return draw.integers(shape, 0, 2)


def row_scales(draw: Draw, shape: Shape) -> torch.Tensor:
    """Rows of very different size: a statistic taken from another row is far off."""
    rows = shape[0]
    scale = torch.exp2(torch.arange(rows, dtype=torch.float64) % 9 - 4).reshape(rows, *[1] * (len(shape) - 1))
    return draw.normal(shape) * scale


def cancelling(draw: Draw, shape: Shape, axis: int = -1) -> torch.Tensor:
    """The second half of `axis` is about minus the first: a lost tile or a short accumulator is far off."""
    x = draw.normal(shape)
    n = shape[axis]
    if n > 1:
        half = n // 2
        first = x.narrow(axis, 0, half)
        x.narrow(axis, n - half, half).copy_(-first * (1 + 2**-6 * draw.uniform(first.shape)))
    return x


def each(make: Callable[[Draw, Shape], torch.Tensor]) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    """The family that draws every operand by `make`."""
    return lambda draw: {name: make(draw, draw.shape(name)) for name in draw.operands}


def _lifted(make: Callable[[Draw, Shape], torch.Tensor]) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    return each(lambda draw, shape: lift_tail(make(draw, shape)))


# for an op that takes any finite values: where nothing special is known of it
COMMON = {make.__name__: _lifted(make) for make in (normal, ascending, row_scales, positive)}
