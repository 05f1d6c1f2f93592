"""Families of values for operands of which nothing is known but an example."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from touchstone.conformance.spec import values
from touchstone.conformance.spec.contract import Draw

Shape = Sequence[int]
Make = Callable[[Draw, Shape], torch.Tensor]
SPECIAL = "nonfinite"
WHOLE = "integers"


def large(draw: Draw, shape: Shape) -> torch.Tensor:
    return draw.normal(shape, 100.0)


def small(draw: Draw, shape: Shape) -> torch.Tensor:
    """So small that a constant added to what is computed, an eps, counts."""
    return draw.normal(shape, 2.0**-10)


def rows(draw: Draw, shape: Shape) -> torch.Tensor:
    return values.row_scales(draw, shape) if len(shape) else draw.normal(shape)


def cancelling(draw: Draw, shape: Shape) -> torch.Tensor:
    return values.cancelling(draw, shape) if len(shape) else draw.normal(shape)


def integers(draw: Draw, shape: Shape) -> torch.Tensor:
    """0, 1 and 2: where every intermediate is a whole number, the answer must be bit-equal."""
    return draw.integers(shape, 0, 3)


def nonfinite(draw: Draw, shape: Shape) -> torch.Tensor:
    """A NaN and an infinity among normal values."""
    x = draw.normal(shape)
    for special in (math.nan, math.inf) if x.numel() > 1 else ():
        x.view(-1)[int(draw.uniform(()) * x.numel())] = special
    return x


MAKES: Mapping[str, Make] = {
    "normal": values.normal,
    "offset": values.mean_offset,
    "large": large,
    "small": small,
    "rows": rows,
    "cancelling": cancelling,
    "ascending": values.ascending,
    WHOLE: integers,
    SPECIAL: nonfinite,
}


def mapped(make: Make, to: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    """The values of a family, moved to where the function has finite values."""
    return lambda draw, shape: to(make(draw, shape))


def within(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Values moved into [low, high], in the order they have."""

    def move(x: torch.Tensor) -> torch.Tensor:
        finite = torch.where(torch.isfinite(x), x, 0.0)
        least, most = (float(finite.min()), float(finite.max())) if x.numel() else (0.0, 1.0)
        return low + (x - least) / max(most - least, 1e-30) * (high - low)

    return move
