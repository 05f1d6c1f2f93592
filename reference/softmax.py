"""Softmax over the last axis: y = exp(x − m) / Σ exp(x − m), m = max x, with x and y (rows, cols).

A row of −inf, with +inf or with NaN, is NaN, as in torch. Source of the online form: [milakov2018].
"""

import numpy as np
import torch


def softmax(x: np.ndarray) -> np.ndarray:
    """(rows, cols) -> (rows, cols)."""
    x = np.asarray(x, np.float64)
    with np.errstate(invalid="ignore"):  # inf − inf is meant to be NaN
        e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


def torch_softmax(x: torch.Tensor) -> torch.Tensor:
    """(rows, cols) -> (rows, cols)."""
    return torch.softmax(x, -1)


def three_pass(x: np.ndarray) -> np.ndarray:
    """Tile after tile: one pass for the maximum, one for the sum, one to write [milakov2018]."""
    x = np.asarray(x, np.float64)
    tiles = [slice(start, start + 4) for start in range(0, x.shape[-1], 4)]
    m, total, y = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1]), np.empty_like(x)
    with np.errstate(invalid="ignore"):
        for tile in tiles:
            m = np.maximum(m, x[..., tile].max(axis=-1))
        for tile in tiles:
            total += np.exp(x[..., tile] - m[..., None]).sum(axis=-1)
        for tile in tiles:
            y[..., tile] = np.exp(x[..., tile] - m[..., None]) / total[..., None]
    return y


def online(x: np.ndarray) -> np.ndarray:
    """Maximum and sum in one pass over the columns: m′ = max(m, s), l′ = l·exp(m − m′) + exp(s − m′) [milakov2018]."""
    x = np.asarray(x, np.float64)
    m, total = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        for column in np.moveaxis(x, -1, 0):
            m_new = np.maximum(m, column)
            base = np.where(m_new == -np.inf, 0, m_new)  # a leading −inf adds nothing
            m, total = m_new, total * np.exp(m - base) + np.exp(column - base)
        return np.exp(x - m[..., None]) / total[..., None]
