"""Families of values for operands of which nothing is known but an example."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from touchstone.conformance.derived.ops import is_float
from touchstone.conformance.spec import values
from touchstone.conformance.spec.contract import Draw

Shape = Sequence[int]
Make = Callable[[Draw, Shape], torch.Tensor]
SPECIAL = "nonfinite"  # of one operand; where there are several: "nonfinite_x"
WHOLE = "integers"
EQUAL = "equal"  # operands of one shape have the same values: differences of 0, where an eps or a margin counts
FEW = 4  # operands that NaN and infinities are tried in


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
}


def small_parameters(draw: Draw, value: torch.Tensor) -> torch.Tensor:
    """So small that what a module adds to what it computes with them, an eps, counts."""
    return value * 2.0**-10


def offset_parameters(draw: Draw, value: torch.Tensor) -> torch.Tensor:
    """Biases far above the spread of what they are added to: cancellation behind a product, in a one-pass variance."""
    return values.mean_offset(draw, value.shape) if value.ndim == 1 else value


def large_parameters(draw: Draw, value: torch.Tensor) -> torch.Tensor:
    """Weights that keep the spread from layer to layer [heetal2015], which torch's own do not: there biases hide what
    came before them."""
    return value * math.sqrt(6) if value.ndim > 1 else value


# of a module's parameters and buffers, which keep the example's values in other families: their sizes hang together
PARAMETERS: Mapping[str, Callable[[Draw, torch.Tensor], torch.Tensor]] = {
    "small_parameters": small_parameters,
    "offset_parameters": offset_parameters,
    "large_parameters": large_parameters,
    WHOLE: lambda draw, value: integers(draw, value.shape),
}


def is_special(family: str) -> bool:
    """Whether a family has NaN and infinities."""
    return family.partition("_")[0] == SPECIAL


def names(inputs: Mapping[str, Shape], parameters: bool, special: bool) -> list[str]:
    """The families for operands `inputs` of numbers and of these shapes, beside a module's `parameters` where it has
    some."""
    found = list(MAKES) + [name for name in PARAMETERS if parameters and name not in MAKES]
    if len(set(map(tuple, inputs.values()))) < len(inputs):
        found.append(EQUAL)
    if special:
        found += [SPECIAL] if len(inputs) == 1 else [f"{SPECIAL}_{name}" for name in list(inputs)[:FEW]]
    return found


def make_for(family: str, operand: str) -> Make:
    """How a family draws an operand."""
    if is_special(family):
        return nonfinite if family in (SPECIAL, f"{SPECIAL}_{operand}") else values.normal
    return MAKES.get(family, values.normal)


ORDERED = 8  # pairs of neighbours: so many in order are no chance


def structured(value: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """`value` with what holds of all of `example` and a kernel may rely on: zeros above or below the diagonal of the
    last two axes, symmetry in them, ascending order along the last."""
    for holds, made in STRUCTURES:
        value = made(value) if holds(example) else value
    return value


def square(function: Callable[..., Any], example: Sequence[Any]) -> Callable[..., Any]:
    """`function`, which raises where an operand is not square whose example is, and triangular or symmetric."""
    places = [place for place, x in enumerate(example) if isinstance(x, torch.Tensor) and is_square(x)]

    def run(*values: Any) -> Any:
        for place in places:
            if values[place].shape[-1] != values[place].shape[-2]:
                raise ValueError(f"operand {place} is square, and not {tuple(values[place].shape)}")
        return function(*values)

    return run if places else function


def is_square(x: torch.Tensor) -> bool:
    """Whether an example has square matrices, triangular or symmetric."""
    return x.ndim > 1 and x.shape[-1] == x.shape[-2] and (_is_lower(x) or _is_upper(x) or _is_symmetric(x))


def _is_symmetric(x: torch.Tensor) -> bool:
    """Whether matrices are square, equal to their transposes, and not diagonal."""
    return _is_matrix(x) and x.shape[-1] == x.shape[-2] and torch.equal(x, x.mT) and not _is_lower(x)


def _is_matrix(x: torch.Tensor) -> bool:
    return x.ndim > 1 and min(x.shape[-2:]) > 2 and bool(x.any())


def _is_lower(x: torch.Tensor) -> bool:
    return _is_matrix(x) and torch.equal(x, x.tril())


def _is_upper(x: torch.Tensor) -> bool:
    return _is_matrix(x) and torch.equal(x, x.triu())


def _is_ascending(x: torch.Tensor) -> bool:
    if x.dtype is torch.bool or not x.ndim or x[..., 1:].numel() < ORDERED:
        return False
    return bool((x[..., 1:] >= x[..., :-1]).all()) and bool((x[..., -1] > x[..., 0]).all())


def _mirrored(x: torch.Tensor) -> torch.Tensor:
    return x.tril() + x.tril(-1).mT if x.shape[-1] == x.shape[-2] else x


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Ascending; NaN, which has no place in an order, is infinity."""
    return torch.where(torch.isnan(x), math.inf, x).sort(-1).values if is_float(x) else x.sort(-1).values


STRUCTURES: Sequence[tuple[Callable[[torch.Tensor], bool], Callable[[torch.Tensor], torch.Tensor]]] = (
    (_is_lower, torch.tril),
    (_is_upper, torch.triu),
    (_is_symmetric, _mirrored),
    (_is_ascending, _ordered),
)


def within(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Values moved into [low, high], in the order they have."""

    def move(x: torch.Tensor) -> torch.Tensor:
        finite = torch.where(torch.isfinite(x), x, 0.0)
        least, most = (float(finite.min()), float(finite.max())) if x.numel() else (0.0, 1.0)
        return low + (x - least) / max(most - least, 1e-30) * (high - low)

    return move
