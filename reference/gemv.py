"""Matrix-vector product: y[m] = Σₖ a[m, k]·x[k], with a (M, K), x (K,), y (M,); K = 0 gives zeros.

Source of the ladder: [liu2021].
"""

import numpy as np
import torch


def gemv(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(M, K), (K,) -> (M,)."""
    return np.asarray(a, np.float64) @ np.asarray(x, np.float64)


def torch_gemv(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(M, K), (K,) -> (M,)."""
    return torch.mv(a, x)


def scaled_columns(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One column of a after another, times its element of x, added to y."""
    a, x = np.asarray(a, np.float64), np.asarray(x, np.float64)
    y = np.zeros(a.shape[0])
    for column, factor in zip(a.T, x, strict=True):
        y += column * factor
    return y
