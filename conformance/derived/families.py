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
SPARSE = "sparse"
ENDS = "ends"
EQUAL = "equal"  # operands of one shape have the same values: differences of 0, where an eps or a margin counts
BETWEEN = 0.425  # of 2^-7 above a number of bfloat16, and so 0.4 of 2^-10 above one of float16
THERE = 8  # elements that are not 0, at most, of the family "sparse"
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


def sparse(draw: Draw, shape: Shape) -> torch.Tensor:
    """0, but for a few elements in the corners and middles of the axes, which are one number or its negative: a mean of
    thousands of terms averages out what each of them is off by, and not what a few are that err alike. The number lies
    0.4 units in the last place above one of float16, and of bfloat16."""
    number = 1 + (draw.integers((), 0, 128) + BETWEEN) / 128
    x = torch.zeros(tuple(shape), dtype=torch.float64)
    for _ in range(THERE if x.numel() else 0):
        place = [(0, n // 2, n - 1)[int(draw.integers((), 0, 3))] for n in shape]
        x[tuple(place)] = number if draw.uniform(()) < 0.5 else -number
    return x


def ends(draw: Draw, shape: Shape) -> torch.Tensor:
    """Normal values, those at the end of each axis 8 times as large: a maximum that leaves out the last elements is
    seldom wrong where all are alike."""
    x = draw.normal(shape)
    last = torch.zeros(tuple(shape), dtype=torch.bool)
    for axis, n in enumerate(shape):
        if n > 1:
            last.select(axis, n - 1).fill_(True)
    return torch.where(last, 8 * x, x)


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
    ENDS: ends,
    SPARSE: sparse,
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


def parameter_for(family: str, name: str, names: Sequence[str]) -> Callable[[Draw, torch.Tensor], torch.Tensor] | None:
    """How a family draws the parameter `name` of a module that has `names`; None: it keeps the example's values. Of a
    module with biases, these alone are far above the spread: slopes and scales hide what they multiply by them."""
    others = family == "offset_parameters" and "bias" not in name and any("bias" in each for each in names)
    return None if others else PARAMETERS.get(family)


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
OFFSETS = 1  # of whole numbers, which may be where parts of another operand begin
HEAVY = 4  # order of the least matrix whose diagonal is heavy by no chance
NORMED = 1e-4  # how far the sum of probabilities is from 1
DEFINITE = 2.0**-12  # of the largest eigenvalue: the least of a matrix that is positive definite for a kernel
SAFE = 2.0**-4  # the same where values are drawn: what rounding them to 16 bits leaves positive definite


def structured(value: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """`value` with what holds of all of `example` and a kernel may rely on: zeros above or below the diagonal of the
    last two axes, symmetry in them, a positive definite matrix, a diagonal that outweighs what else is in its row,
    probabilities along an axis or their logarithms, ascending order along the last."""
    for holds, made in STRUCTURES:
        if holds(example) and not holds(value):
            value = made(value, example)
    return value


def square(function: Callable[..., Any], example: Sequence[Any]) -> Callable[..., Any]:
    """`function`, which raises where an operand is not square whose example is, and has a structure."""
    places = [place for place, x in enumerate(example) if isinstance(x, torch.Tensor) and is_square(x)]

    def run(*values: Any) -> Any:
        for place in places:
            if values[place].shape[-1] != values[place].shape[-2]:
                raise ValueError(f"operand {place} is square, and not {tuple(values[place].shape)}")
        return function(*values)

    return run if places else function


def is_square(x: torch.Tensor) -> bool:
    """Whether an example has square matrices, triangular, symmetric, or with a heavy diagonal."""
    return _are_square(x) and (_is_lower(x) or _is_upper(x) or _is_symmetric(x) or _is_heavy(x))


def _are_square(x: torch.Tensor) -> bool:
    return x.ndim > 1 and x.shape[-1] == x.shape[-2]


def _is_symmetric(x: torch.Tensor) -> bool:
    """Whether matrices are square, equal to their transposes, and not diagonal."""
    return _is_matrix(x) and _are_square(x) and torch.equal(x, x.mT) and not _is_lower(x)


def _is_matrix(x: torch.Tensor) -> bool:
    return x.ndim > 1 and min(x.shape[-2:]) > 2 and bool(x.any())


def _is_lower(x: torch.Tensor) -> bool:
    return _is_matrix(x) and torch.equal(x, x.tril())


def _is_upper(x: torch.Tensor) -> bool:
    return _is_matrix(x) and torch.equal(x, x.triu())


def _is_definite(x: torch.Tensor) -> bool:
    if not is_float(x) or not _is_symmetric(x) or not bool(torch.isfinite(x).all()):
        return False
    eigenvalues = torch.linalg.eigvalsh(x.double())
    return bool((eigenvalues[..., 0] > DEFINITE * eigenvalues[..., -1]).all())


def _heaviness(x: torch.Tensor) -> float:
    """The least element of the diagonals by the root mean square of what else is not 0 in their rows and columns; 0
    where it is none of floating-point numbers, or nothing else is there."""
    if (
        not is_float(x)
        or not _are_square(x)
        or x.shape[-1] < HEAVY
        or not x.numel()
        or not bool(torch.isfinite(x).all())
    ):
        return 0.0
    beside = _beside(x.double())
    return float((x.diagonal(dim1=-2, dim2=-1).double().abs() / beside).min()) if bool((beside > 0).all()) else 0.0


def _beside(x: torch.Tensor) -> torch.Tensor:
    """Of each row of square matrices, the root mean square of what is not 0 beside the diagonal: in the row, or in the
    whole matrix where there is nothing in the row."""
    others = torch.where(torch.isfinite(x), x, 0.0) * (1 - torch.eye(x.shape[-1], dtype=x.dtype))
    squares, there = others.square(), (others != 0).to(x.dtype)
    whole = squares.sum((-2, -1)) / there.sum((-2, -1)).clamp_min(1)
    count = there.sum(-1)
    return torch.where(count > 0, squares.sum(-1) / count.clamp_min(1), whole[..., None]).sqrt()


def _is_heavy(x: torch.Tensor) -> bool:
    """Whether a solution with matrices is well determined, since their diagonals outweigh the rest."""
    if not is_float(x) or not _are_square(x) or x.shape[-1] < HEAVY:
        return False
    return _heaviness(x) > (1.0 if _is_lower(x) or _is_upper(x) else math.sqrt(x.shape[-1]))


def _axis_of_one(x: torch.Tensor) -> int | None:
    """The axis along which numbers that are not negative sum to 1."""
    if not is_float(x) or not x.numel() or not bool((torch.isfinite(x) & (x >= 0)).all()):
        return None
    sums = ((axis, x.double().sum(axis)) for axis in (-1, *range(x.ndim - 1)) if x.ndim and x.shape[axis] > 1)
    return next((axis for axis, total in sums if bool(((total - 1).abs() < NORMED).all())), None)


def _is_probability(x: torch.Tensor) -> bool:
    return _axis_of_one(x) is not None


def _is_log_probability(x: torch.Tensor) -> bool:
    return is_float(x) and bool(torch.isfinite(x).all()) and _is_probability(x.double().exp())


def _is_ascending(x: torch.Tensor) -> bool:
    if x.dtype is torch.bool or not x.ndim or x[..., 1:].numel() < (ORDERED if is_float(x) else OFFSETS):
        return False
    return bool((x[..., 1:] >= x[..., :-1]).all()) and bool((x[..., -1] > x[..., 0]).all())


def _mirrored(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    return x.tril() + x.tril(-1).mT if _are_square(x) else x


def _definite(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """The products of the rows, as large as the values were on average, and more on the diagonal."""
    if not _are_square(x) or not bool(torch.isfinite(x).all()):
        return x
    y = x.double() @ x.double().mT
    y = (y + y.mT) * (x.double().abs().mean() / y.diagonal(dim1=-2, dim2=-1).mean().clamp_min(1e-30) / 2)
    eigenvalues = torch.linalg.eigvalsh(example.double())
    least = max(SAFE, float((eigenvalues[..., 0] / eigenvalues.mean(-1)).min()))
    return (y + least * y.diagonal(dim1=-2, dim2=-1).mean() * torch.eye(x.shape[-1], dtype=y.dtype)).to(x.dtype)


def _with_diagonal(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """With a diagonal as heavy as the example's, positive where that is."""
    if not _are_square(x):
        return x
    diagonal, heavy = x.diagonal(dim1=-2, dim2=-1), _heaviness(example)
    heavy *= max(1.0, math.sqrt(x.shape[-1] / example.shape[-1]))  # of an order that is larger
    size = torch.maximum(diagonal.abs(), heavy * _beside(x))
    size = size.ceil() if torch.equal(x, x.round()) else size
    sign = torch.where(diagonal < 0, -1.0, 1.0) if bool((example.diagonal(dim1=-2, dim2=-1) < 0).any()) else 1.0
    return x + torch.diag_embed(torch.where(torch.isfinite(diagonal), size * sign - diagonal, 0.0))


def _normed(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Their absolute values by the sum of them; all the same where that is 0."""
    axis = _axis_of_one(example)
    assert axis is not None
    y = x.abs()
    total = y.sum(axis, keepdim=True)
    y = torch.where(total > 0, y, torch.ones_like(y))
    total = torch.where(total > 0, total, float(x.shape[axis]))
    return torch.where(torch.isfinite(total), y / total, _without_infinities(y))


def _log_normed(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    axis = _axis_of_one(example.double().exp())
    assert axis is not None
    finite = torch.isfinite(x).all(axis, keepdim=True)
    return torch.where(finite, torch.log_softmax(x, axis), _without_infinities(x))


def _without_infinities(x: torch.Tensor) -> torch.Tensor:
    """NaN in their places: an infinity is no probability, and the logarithm of none."""
    return torch.where(torch.isinf(x), math.nan, x)


def _ordered(x: torch.Tensor, example: torch.Tensor) -> torch.Tensor:
    """Ascending; NaN, which has no place in an order, is infinity."""
    return torch.where(torch.isnan(x), math.inf, x).sort(-1).values if is_float(x) else x.sort(-1).values


STRUCTURES: Sequence[tuple[Callable[[torch.Tensor], bool], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = (
    (_is_lower, lambda x, example: x.tril()),
    (_is_upper, lambda x, example: x.triu()),
    (_is_symmetric, _mirrored),
    (_is_definite, _definite),
    (_is_heavy, _with_diagonal),
    (_is_probability, _normed),
    (_is_log_probability, _log_normed),
    (_is_ascending, _ordered),
)


def within(low: float, high: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Values moved into [low, high], in the order they have."""

    def move(x: torch.Tensor) -> torch.Tensor:
        finite = torch.where(torch.isfinite(x), x, 0.0)
        least, most = (float(finite.min()), float(finite.max())) if x.numel() else (0.0, 1.0)
        return low + (x - least) / max(most - least, 1e-30) * (high - low)

    return move
