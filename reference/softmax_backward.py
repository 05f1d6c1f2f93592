"""Backward of softmax: dx = y·(dy − Σ y·dy), the sum over the last axis, all (rows, cols). Source: [oneflow2021]."""

import numpy as np
import torch


def softmax_backward(y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """(rows, cols), (rows, cols) -> dx (rows, cols)."""
    y, dy = np.asarray(y, np.float64), np.asarray(dy, np.float64)
    return y * (dy - (y * dy).sum(axis=-1, keepdims=True))


def torch_softmax_backward(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """(rows, cols), (rows, cols) -> dx (rows, cols)."""
    return y * (dy - (y * dy).sum(-1, keepdim=True))


def jacobian(y: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """dx = J·dy with the whole matrix J = diag(y) − y·yᵀ of every row."""
    y, dy = np.asarray(y, np.float64), np.asarray(dy, np.float64)
    matrix = y[:, :, None] * np.eye(y.shape[1]) - y[:, :, None] * y[:, None, :]
    return np.einsum("rij,rj->ri", matrix, dy)
