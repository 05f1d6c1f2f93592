"""Pieces of error bounds that several contracts share: chained dot products.

All tensors are float64. A "condition" multiplies the float32 accumulation error of a budget, a "rounding" the error of
storing an intermediate in the input dtype (conformance/spec/budget.py).
"""

import math

import torch

from touchstone.conformance.spec.budget import EPS, EPS32, ROUNDED, C, Scalar

ALIKE = 1 - 1e-12
CUT_OFF = 128  # from the square of so many terms on, what accumulators cut off counts for more than what they round


def combine(error: torch.Tensor, weight: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
    """Error of `value @ weight` when each element of `value` is off by up to `error`, independently.

    (..., I, J), (..., J, N) -> (..., I, N): the worst case, or four standard deviations of the random sum. Values that
    repeat (`repeats`) are off by the same amount: give `value`, and that part is added with its sign.
    """
    random = 4 * (error.square() @ weight.square()).sqrt()
    if value is not None:
        random = random + ((error * value.sign()) @ weight).abs()
    return torch.minimum(error @ weight.abs(), random)


def gathered(error: torch.Tensor, axis: int, value: torch.Tensor | None = None) -> torch.Tensor:
    """`combine` for a plain sum along `axis`."""
    random = 4 * error.square().sum(axis).sqrt()
    if value is not None:
        random = random + (error * value.sign()).sum(axis).abs()
    return torch.minimum(error.sum(axis), random)


def counted(count: Scalar, size: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """The terms of a budget for sums of `count` addends, given the sums of their absolute values and their squares.

    A running sum rounds an addend to its own last place, and equal ones to the same side as long as it stays between
    two powers of two: the errors add up to count/4 eps of the sum, where the root of the terms allows 2·√count.
    """
    number = torch.as_tensor(count, dtype=torch.float64)
    return torch.where(alike(number, size, squares), torch.maximum(number, (number / 8).square()), number)


def alike(number: torch.Tensor, size: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Whether `number` addends have one size: where Cauchy and Schwarz are equal, size² = number·squares, but for what
    the last place of a sum of float32 does not tell apart."""
    return (size > 0) & (size.square() * (1 + (number * EPS32).square()) >= number * squares * ALIKE)


def summed(addends: torch.Tensor, axis: int) -> torch.Tensor:
    """`counted` for a plain sum of `addends` along `axis`, which it leaves out. Zeros need not be alike."""
    number = (addends != 0).sum(axis).double()
    found = counted(number, addends.abs().sum(axis), addends.square().sum(axis))
    return found.clamp_min(addends.shape[axis])


def multiplied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`counted` for left·right, (..., I, J), (..., J, N) -> (..., I, N): products are alike where both factors are.

    Tensor cores cut off what is below the last places of a running sum. That leans one way, so that over very many
    terms the errors add up: to n/22 eps of a sum of n = 138,002, two terms a step (an H200, float16).
    """
    terms = max(left.shape[-1], (left.shape[-1] / CUT_OFF) ** 2)
    of_left, of_right = ((t != 0).sum(axis, keepdim=True).double() for t, axis in ((left, -1), (right, -2)))
    both = [
        alike(number, t.abs().sum(axis, keepdim=True), t.square().sum(axis, keepdim=True))
        for t, axis, number in ((left, -1, of_left), (right, -2, of_right))
    ]
    many = (torch.minimum(of_left, of_right) / 8).square().clamp_min(terms)
    return torch.where(both[0] & both[1], many, float(terms))


def most(terms: Scalar) -> Scalar:
    """The largest condition, in units of the value, that a budget of so many terms takes: a quarter of the value.

    However large the arguments of a function are, of an answer more than its digits is asked for.
    """
    return 0.25 / (C * EPS32 * (terms + 8.0) ** 0.5)


def repeats(axis: int, *operands: torch.Tensor) -> bool:
    """Whether one of `operands` is the same slice over and over along `axis`, as a broadcast one is."""
    return any(t.shape[axis] > 1 and bool((t == t.narrow(axis, 0, 1)).all()) for t in operands)


def lossy(compute: str | None, dtype: torch.dtype) -> str | None:
    """`compute`, or None where operands of `dtype` are not changed by being rounded to it."""
    return None if compute not in ROUNDED or EPS[dtype] >= ROUNDED[compute] else compute


def kept(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rounding, in units of eps, of `value` when it is stored in `dtype`: its size, or that of a subnormal."""
    return value.abs().clamp_min(torch.finfo(dtype).tiny)


def accumulated(terms: int, condition: torch.Tensor) -> torch.Tensor:
    """The absolute error of a float32 sum of `terms` terms."""
    return C * EPS32 * math.sqrt(terms + 8) * condition
