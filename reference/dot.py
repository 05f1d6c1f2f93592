"""Dot product: y = Σ aᵢ·bᵢ, with a and b (n,) and y (); 0 where n is 0. Source of the ladder: [harris2007]."""

import numpy as np
import torch


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(n,), (n,) -> ()."""
    return np.asarray(np.asarray(a, np.float64) @ np.asarray(b, np.float64))


def torch_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(n,), (n,) -> ()."""
    return torch.dot(a, b)


def pairwise(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums of both halves, added: the tree of a block's threads [harris2007]."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.size < 2:
        return np.asarray((a * b).sum())
    half = a.size // 2
    return np.asarray(pairwise(a[:half], b[:half]) + pairwise(a[half:], b[half:]))
