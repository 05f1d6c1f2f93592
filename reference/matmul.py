"""Matrix product: c[m, n] = Σₖ a[m, k]·b[k, n], with a (M, K), b (K, N), c (M, N); K = 0 gives zeros.

Source: the ladder of [boehm2022].
"""

import numpy as np
import torch


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(M, K), (K, N) -> (M, N)."""
    return np.asarray(a, np.float64) @ np.asarray(b, np.float64)


def torch_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K), (K, N) -> (M, N)."""
    return a @ b


def outer_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One rank-one update of c for every k: the order in which a thread's registers are filled [volkov2010]."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    c = np.zeros((a.shape[0], b.shape[1]))
    for column, row in zip(a.T, b, strict=True):
        c += np.multiply.outer(column, row)
    return c


def split_k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """K cut into interleaved thirds, each a product of its own, summed at the end."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return sum((a[:, part::3] @ b[part::3] for part in range(3)), np.zeros((a.shape[0], b.shape[1])))
