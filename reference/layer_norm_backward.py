"""Backward of layer norm, with x̂ = (x − μ)·r, r = 1/√(σ² + eps), g = dy·weight:

dx = r·(g − mean g − x̂·mean(g·x̂)), means over the last axis; dweight = Σ dy·x̂ and dbias = Σ dy over rows.

x, dy, dx (rows, cols); weight, dweight, dbias (cols,). mean = μ and rstd = r, (rows,) each, are used where given and
else recomputed. Source: [apex2018].
"""

import numpy as np
import torch


def layer_norm_backward(
    x: np.ndarray,
    weight: np.ndarray,
    dy: np.ndarray,
    *,
    mean: np.ndarray | None = None,
    rstd: np.ndarray | None = None,
    eps: float = 1e-5,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, cols), (cols,), (rows, cols) -> dx (rows, cols), dweight (cols,), dbias (cols,)."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    cols = max(x.shape[-1], 1)  # an empty mean is 0
    centred = x - (x.sum(axis=-1) / cols if mean is None else np.asarray(mean, np.float64))[:, None]
    r = 1 / np.sqrt((centred**2).sum(axis=-1) / cols + eps) if rstd is None else np.asarray(rstd, np.float64)
    r, xhat, g = r[:, None], centred * r[:, None], dy * weight
    mean_g, mean_gx = g.sum(axis=-1, keepdims=True) / cols, (g * xhat).sum(axis=-1, keepdims=True) / cols
    return r * (g - mean_g - xhat * mean_gx), (dy * xhat).sum(axis=0), dy.sum(axis=0)


def torch_layer_norm_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    dy: torch.Tensor,
    *,
    mean: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rows, cols), (cols,), (rows, cols) -> dx (rows, cols), dweight (cols,), dbias (cols,)."""
    centred = x - (x.mean(-1) if mean is None else mean.to(x.dtype))[:, None]
    r = torch.rsqrt(centred.square().mean(-1) + eps) if rstd is None else rstd.to(x.dtype)
    r, xhat, g = r[:, None], centred * r[:, None], dy * weight
    dx = r * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx, (dy * xhat).sum(0), dy.sum(0)


def chain_rule(
    x: np.ndarray,
    weight: np.ndarray,
    dy: np.ndarray,
    *,
    mean: np.ndarray | None = None,
    rstd: np.ndarray | None = None,
    eps: float = 1e-5,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Through the statistics one by one: dσ² = −r³/2·Σ g·(x − μ), dμ = −r·Σ g, dx = r·g + 2(x − μ)/n·dσ² + dμ/n."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    rows, cols = x.shape
    mu = np.ones(cols) @ x.T / max(cols, 1) if mean is None else np.asarray(mean, np.float64)
    centred = x - mu[:, None]
    r = (np.einsum("rc,rc->r", centred, centred) / max(cols, 1) + eps) ** -0.5 if rstd is None else rstd
    r, g = np.asarray(r, np.float64)[:, None], dy * weight
    dvariance = -(r**3) / 2 * (g * centred).sum(axis=1, keepdims=True)
    dmean = -r * g.sum(axis=1, keepdims=True)
    dx = r * g + 2 * centred / max(cols, 1) * dvariance + dmean / max(cols, 1)
    return dx, np.einsum("rc,rc->c", dy, r * centred), np.ones(rows) @ dy


def jacobian(
    x: np.ndarray,
    weight: np.ndarray,
    dy: np.ndarray,
    *,
    mean: np.ndarray | None = None,
    rstd: np.ndarray | None = None,
    eps: float = 1e-5,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """dx = J·g with the whole matrix J = r·(I − 1·1ᵀ/n − x̂·x̂ᵀ/n) of every row."""
    x, weight, dy = (np.asarray(t, np.float64) for t in (x, weight, dy))
    dx, xhat, cols = np.zeros(x.shape), np.zeros(x.shape), x.shape[1]
    for i, row in enumerate(x if cols else ()):
        centred = row - (row.mean() if mean is None else mean[i])
        r = 1 / np.sqrt(centred @ centred / cols + eps) if rstd is None else rstd[i]
        xhat[i] = centred * r
        dx[i] = r * (np.eye(cols) - 1 / cols - np.multiply.outer(xhat[i], xhat[i]) / cols) @ (dy[i] * weight)
    return dx, np.einsum("rc,rc->c", dy, xhat), dy.sum(axis=0)
