"""Residual add and layer norm: h = x + residual, y = layer_norm(h); both are returned.

x, residual, y, h (rows, cols), weight and bias (cols,); bias may be None. Source: [baetal2016].
"""

import numpy as np
import torch

from touchstone.reference.layer_norm import layer_norm, torch_layer_norm


def add_layer_norm(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, cols), (rows, cols), (cols,), (cols,) -> y (rows, cols), h (rows, cols)."""
    h = np.asarray(x, np.float64) + np.asarray(residual, np.float64)
    return layer_norm(h, weight, bias, eps=eps), h


def torch_add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, cols), (rows, cols), (cols,), (cols,) -> y (rows, cols), h (rows, cols)."""
    h = x + residual
    return torch_layer_norm(h, weight, bias, eps=eps), h


def from_parts(
    x: np.ndarray, residual: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics of h from those of its summands: μ = μx + μr, σ² = σx² + σr² + 2·covariance."""
    x, residual = np.asarray(x, np.float64), np.asarray(residual, np.float64)
    n = max(x.shape[-1], 1)
    a, b = (t - (t @ np.ones(t.shape[-1]) / n)[..., None] for t in (x, residual))
    variance = sum(np.einsum("...c,...c->...", s, t) for s, t in ((a, a), (b, b), (a, 2 * b))) / n
    y = (a + b) * ((variance + eps) ** -0.5)[..., None] * weight
    return (y if bias is None else y + bias), np.add(residual, x)
