"""Softmax with its log-sum-exp: y = exp(x − lse), lse = m + ln Σ exp(x − m), m = max x; x, y (rows, cols), lse (rows,).

The name is that of the recurrence which finds m and l = Σ exp(x − m) in one pass [milakov2018]: after score s,
m′ = max(m, s), l′ = l·exp(m − m′) + exp(s − m′). Two partial pairs merge in the same way, in any order. While m′ is
−inf nothing has been summed and l′ is 0: without that guard a leading tile of −inf turns the row into NaN.
y is softmax's (NaN where the row is −inf throughout, or holds +inf or NaN), lse is torch.logsumexp's (−inf for a row
of −inf or of no columns, +inf for a row with +inf, NaN for one with NaN).
"""

import numpy as np
import torch

from touchstone.reference.softmax import softmax


def online_softmax(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, cols) -> y (rows, cols), lse (rows,)."""
    x = np.asarray(x, np.float64)
    m = x.max(axis=-1, initial=-np.inf)
    shift = np.where(np.isinf(m), 0, m)
    with np.errstate(divide="ignore", over="ignore"):  # ln 0 is meant to be −inf
        return softmax(x), shift + np.log(np.exp(x - shift[..., None]).sum(axis=-1))


def torch_online_softmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, cols) -> y (rows, cols), lse (rows,)."""
    return torch.softmax(x, -1), torch.logsumexp(x, -1)


def tiled(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(m, l) carried over column tiles: m′ = max(m, tile's), l′ = l·exp(m − m′) + Σ exp(tile − m′) [milakov2018]."""
    x = np.asarray(x, np.float64)
    m, total = _empty_pair(x)
    for start in range(0, x.shape[-1], 4):
        m, total = _merge((m, total), _pair(x[..., start : start + 4]))
    return _finish(x, m, total)


def merged(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(m, l) of the halves of a row, merged as a tree: the reduction of a warp or a block [milakov2018]."""

    def tree(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = part.shape[-1] // 2
        return _pair(part) if half == 0 else _merge(tree(part[..., :half]), tree(part[..., half:]))

    x = np.asarray(x, np.float64)
    return _finish(x, *tree(x))


def _empty_pair(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])


def _pair(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum m and l = Σ exp(x − m) of each row; l is 0 where m is −inf."""
    m = x.max(axis=-1, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        return m, np.exp(x - np.where(m == -np.inf, 0, m)[..., None]).sum(axis=-1)


def _merge(left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    (m1, l1), (m2, l2) = left, right
    m = np.maximum(m1, m2)
    base = np.where(m == -np.inf, 0, m)
    with np.errstate(invalid="ignore"):
        return m, l1 * np.exp(m1 - base) + l2 * np.exp(m2 - base)


def _finish(x: np.ndarray, m: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.exp(x - m[..., None]) / total[..., None], np.where(np.isinf(m), m, m + np.log(total))
