"""Residual add and RMS norm: h = x + residual, y = rms_norm(h); both are returned.

x, residual, y, h (rows, cols), weight (cols,). Source: [zhang2019] after a residual add [dao2024].
"""

import numpy as np
import torch

from touchstone.reference.rms_norm import rms_norm, torch_rms_norm


def add_rms_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, *, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, cols), (rows, cols), (cols,) -> y (rows, cols), h (rows, cols)."""
    h = np.asarray(x, np.float64) + np.asarray(residual, np.float64)
    return rms_norm(h, weight, eps=eps), h


def torch_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, cols), (rows, cols), (cols,) -> y (rows, cols), h (rows, cols)."""
    h = x + residual
    return torch_rms_norm(h, weight, eps=eps), h


def from_parts(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, *, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """The mean square of h from its summands: mean x² + mean r² + 2·mean x·r."""
    x, residual = np.asarray(x, np.float64), np.asarray(residual, np.float64)
    pairs = ((x, x), (residual, residual), (x, 2 * residual))
    square = sum(np.einsum("...c,...c->...", s, t) for s, t in pairs) / max(x.shape[-1], 1)
    h = np.add(residual, x)
    return h * ((square + eps) ** -0.5)[..., None] * weight, h
