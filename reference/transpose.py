"""Transpose: y[c, r] = x[r, c], with x (rows, cols) and y (cols, rows).

Nothing is computed: y has the bits of x. Source: [harris2013].
"""

import numpy as np
import torch


def transpose(x: np.ndarray) -> np.ndarray:
    """(rows, cols) -> (cols, rows)."""
    return np.asarray(x, np.float64).T.copy()


def torch_transpose(x: torch.Tensor) -> torch.Tensor:
    """(rows, cols) -> (cols, rows)."""
    return x.t().contiguous()


def by_index(x: np.ndarray) -> np.ndarray:
    """From the linear index of every element: i of y is (i mod rows)·cols + i div rows of x."""
    x = np.asarray(x, np.float64)
    rows, cols = x.shape
    i = np.arange(x.size)
    return x.reshape(-1)[i % max(rows, 1) * cols + i // max(rows, 1)].reshape(cols, rows)


def in_tiles(x: np.ndarray) -> np.ndarray:
    """Tile (i, j) of x becomes, transposed, tile (j, i) of y [harris2013]."""
    x = np.asarray(x, np.float64)
    rows, cols = x.shape
    y = np.empty((cols, rows))
    for r in range(0, rows, 4):
        for c in range(0, cols, 4):
            y[c : c + 4, r : r + 4] = x[r : r + 4, c : c + 4].T
    return y
