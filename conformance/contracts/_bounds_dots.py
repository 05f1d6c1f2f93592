"""Pieces of error bounds that several contracts share: chained dot products.

All tensors are float64. A "condition" multiplies the float32 accumulation error of a budget, a "rounding" the error of
storing an intermediate in the input dtype (conformance/spec/budget.py).
"""

import math

import torch

from touchstone.conformance.spec.budget import EPS, EPS32, ROUNDED, C


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
