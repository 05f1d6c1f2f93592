"""Backward of RMS norm, with x̂ = x·r, r = 1/√(mean x² + eps), g = dy·weight:

dx = r·(g − x̂·mean(g·x̂)), the mean over the last axis; dweight = Σ dy·x̂ over rows.

x, dy, dx (rows, cols); weight, dweight (cols,). rstd = r, (rows,), is used where given and else recomputed.
Source: [apex2018], [hsu2024].
"""

import numpy as np
import torch


def rms_norm_backward(
    x: np.ndarray, weight: np.ndarray, dy: np.ndarray, *, rstd: np.ndarray | None = None, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, cols), (cols,), (rows, cols) -> dx (rows, cols), dweight (cols,)."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    cols = max(x.shape[-1], 1)  # an empty mean is 0
    r = 1 / np.sqrt((x**2).sum(axis=-1) / cols + eps) if rstd is None else np.asarray(rstd, np.float64)
    r, xhat, g = r[:, None], x * r[:, None], dy * weight
    return r * (g - xhat * (g * xhat).sum(axis=-1, keepdims=True) / cols), (dy * xhat).sum(axis=0)


def torch_rms_norm_backward(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, *, rstd: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, cols), (cols,), (rows, cols) -> dx (rows, cols), dweight (cols,)."""
    r = torch.rsqrt(x.square().mean(-1) + eps) if rstd is None else rstd.to(x.dtype)
    r, xhat, g = r[:, None], x * r[:, None], dy * weight
    return r * (g - xhat * (g * xhat).mean(-1, keepdim=True)), (dy * xhat).sum(0)


def from_x(
    x: np.ndarray, weight: np.ndarray, dy: np.ndarray, *, rstd: np.ndarray | None = None, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """Without x̂: dx = r·(g − x·(r²/n)·Σ g·x), dweight = Σ dy·x·r [hsu2024]."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    n, dot = max(x.shape[1], 1), np.einsum("rc,c,rc->r", dy, weight, x)
    r = (np.einsum("rc,rc->r", x, x) / n + eps) ** -0.5 if rstd is None else np.asarray(rstd, np.float64)
    return r[:, None] * (dy * weight - x * (r**2 / n * dot)[:, None]), np.einsum("rc,rc,r->c", dy, x, r)


def jacobian(
    x: np.ndarray, weight: np.ndarray, dy: np.ndarray, *, rstd: np.ndarray | None = None, eps: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """dx = J·g with the whole matrix J = r·(I − x̂·x̂ᵀ/n) of every row."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    dx, xhat, cols = np.zeros(x.shape), np.zeros(x.shape), x.shape[1]
    for i, row in enumerate(x if cols else ()):
        r = 1 / np.sqrt(row @ row / cols + eps) if rstd is None else rstd[i]
        xhat[i] = row * r
        dx[i] = r * (np.eye(cols) - np.multiply.outer(xhat[i], xhat[i]) / cols) @ (dy[i] * weight)
    return dx, np.einsum("rc,rc->c", dy, xhat)
