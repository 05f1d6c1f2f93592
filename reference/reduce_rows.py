"""Reduction along one axis of a matrix: sums, maxima or minima of rows (axis −1) or columns (axis 0); NaN wins.

x (rows, cols); y (rows,) or (cols,). A sum of nothing is 0, an extreme of nothing a ValueError, as in torch. Along
axis 0 it is the gradient of adding a row to every row of a matrix. Source: [harris2007].
"""

import numpy as np
import torch


def reduce_rows(x: np.ndarray, *, axis: int = -1, function: str = "sum") -> np.ndarray:
    """(rows, cols) -> (rows,) or (cols,); `function` is "sum", "max" or "min"."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf is meant to be NaN
        return getattr(np, function)(x, axis=axis)


def torch_reduce_rows(x: torch.Tensor, *, axis: int = -1, function: str = "sum") -> torch.Tensor:
    """(rows, cols) -> (rows,) or (cols,); `function` is "sum", "max" or "min"."""
    return getattr(torch, {"sum": "sum", "max": "amax", "min": "amin"}[function])(x, axis)


def slices(x: np.ndarray, *, axis: int = -1, function: str = "sum") -> np.ndarray:
    """One column (axis −1) or row (axis 0) after another is folded onto the first: a loop of a thread an output."""
    fold = getattr(np, {"sum": "add", "max": "maximum", "min": "minimum"}[function])
    every = np.moveaxis(np.asarray(x, np.float64), axis, 0)
    y = every[0].copy() if len(every) else np.zeros(every.shape[1:])
    for one in every[1:]:
        with np.errstate(invalid="ignore"):
            y = fold(y, one)
    return y


def by_product(x: np.ndarray, *, axis: int = -1, function: str = "sum") -> np.ndarray:
    """A sum as the product with a vector of ones; an extreme as the end of the sorted elements."""
    t = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    if function == "sum":
        with np.errstate(invalid="ignore"):
            return t @ np.ones(t.shape[-1])
    end = np.sort(t, axis=-1)[:, -1 if function == "max" else 0] if t.size else np.zeros(len(t))
    return np.where(np.isnan(t).any(-1), np.nan, end)
