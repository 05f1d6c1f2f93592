"""What stands between two layers of a transformer: y = dropout(x + bias) + residual [shoeybi2019].

x, residual and y (rows, cols), bias (cols,) or None. Which elements are kept follows from seed, offset and the index in
(rows, cols), as in `dropout`. ValueError: p outside [0, 1], seed or offset outside [0, 2^63).
"""

import numpy as np
import torch

from touchstone.reference import _philox
from touchstone.reference.dropout import by_element, torch_dropout


def bias_dropout_residual(
    x: np.ndarray, bias: np.ndarray | None, residual: np.ndarray, *, p: float = 0.0, seed: int = 0, offset: int = 0
) -> np.ndarray:
    """(rows, cols), (cols,) or None, (rows, cols) -> (rows, cols)."""
    x = np.asarray(x, np.float64)
    shifted = x if bias is None else x + np.asarray(bias, np.float64)
    keep = _philox.kept(x.shape, p, seed, offset)
    return np.where(keep, shifted, 0.0) * _philox.scale(p) + np.asarray(residual, np.float64)


def torch_bias_dropout_residual(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> torch.Tensor:
    """(rows, cols), (cols,) or None, (rows, cols) -> (rows, cols)."""
    return torch_dropout(x if bias is None else x + bias, p=p, seed=seed, offset=offset) + residual


def by_element_of_a_sum(
    x: np.ndarray, bias: np.ndarray | None, residual: np.ndarray, *, p: float = 0.0, seed: int = 0, offset: int = 0
) -> np.ndarray:
    """x, and bias for every row, dropped out by themselves with one mask: dropout is linear."""
    rows = np.zeros(np.shape(x)) + (0.0 if bias is None else bias)
    return sum(by_element(part, p=p, seed=seed, offset=offset) for part in (x, rows)) + np.asarray(residual, np.float64)
