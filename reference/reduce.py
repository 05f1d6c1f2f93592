"""Reduction to one number: y = Σ xᵢ, max xᵢ or min xᵢ, with x (n,) and y (); NaN wins over numbers.

The sum of nothing is 0; the maximum or minimum of nothing is a ValueError, as in torch. Source: [harris2007].
"""

import math

import numpy as np
import torch

FUNCTIONS = ("sum", "max", "min")


def reduce(x: np.ndarray, *, function: str = "sum") -> np.ndarray:
    """(n,) -> (); `function` is "sum", "max" or "min"."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf is meant to be NaN
        return np.asarray(getattr(np, function)(x))


def torch_reduce(x: torch.Tensor, *, function: str = "sum") -> torch.Tensor:
    """(n,) -> (); `function` is "sum", "max" or "min"."""
    return getattr(torch, {"sum": "sum", "max": "amax", "min": "amin"}[function])(x, 0)


def by_halves(x: np.ndarray, *, function: str = "sum") -> np.ndarray:
    """The second half is folded onto the first until one number is left [harris2007]."""
    fold = getattr(np, {"sum": "add", "max": "maximum", "min": "minimum"}[function])
    x = np.array(x, np.float64)
    while x.size > 1:
        half = x.size // 2
        with np.errstate(invalid="ignore"):
            x = np.concatenate([fold(x[:half], x[half : 2 * half]), x[2 * half :]])
    return np.asarray(x[0] if x.size else 0.0)


def accurate(x: np.ndarray, *, function: str = "sum") -> np.ndarray:
    """The sum rounded once, by Python's fsum; the last of the sorted numbers."""
    numbers = [float(value) for value in np.asarray(x)]
    if function == "sum":
        return np.asarray(math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers))
    if any(map(math.isnan, numbers)):
        return np.asarray(math.nan)
    return np.asarray(sorted(numbers)[-1 if function == "max" else 0])
