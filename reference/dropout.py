"""Dropout of each element with probability p: y = x/(1 - p) where it is kept, else 0 whatever x is [srivastava2014].

x and y of any one shape. Which elements are kept follows from seed, offset and the element's index: `_philox`. The
gradient of x is the dropout of dy with the same parameters. ValueError: p outside [0, 1], seed or offset outside
[0, 2^63).
"""

import numpy as np
import torch

from touchstone.reference import _philox


def dropout(x: np.ndarray, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> np.ndarray:
    """Any shape."""
    x = np.asarray(x, np.float64)
    return np.where(_philox.kept(x.shape, p, seed, offset), x, 0.0) * _philox.scale(p)


def torch_dropout(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """Any shape."""
    keep = _philox.torch_kept(x.shape, p, seed, offset, x.device)
    return torch.where(keep, x * _philox.scale(p), torch.zeros((), dtype=x.dtype, device=x.device))


def by_element(x: np.ndarray, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> np.ndarray:
    """Element by element, Philox in integers of any length and the probability as a quotient of two."""
    x = np.asarray(x, np.float64)
    y = np.zeros(x.size)
    numerator, denominator = p.as_integer_ratio()
    for e, value in enumerate(x.reshape(-1)):
        left, right = (e >> 2) | offset % 2**32 << 64, seed
        left |= offset >> 32 << 96
        for _ in range(10):
            c = [left >> 32 * i & 0xFFFFFFFF for i in range(4)]
            k = [right & 0xFFFFFFFF, right >> 32]
            a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [b // 2**32 ^ c[1] ^ k[0], b % 2**32, a // 2**32 ^ c[3] ^ k[1], a % 2**32]
            left = sum(word << 32 * i for i, word in enumerate(c))
            right = (k[0] + 0x9E3779B9) % 2**32 | (k[1] + 0xBB67AE85) % 2**32 << 32
        if left >> 32 * (e & 3) & 0xFFFFFFFF >= numerator * 2**32 // denominator:
            y[e] = value / (1 - p)
    return y.reshape(x.shape)
