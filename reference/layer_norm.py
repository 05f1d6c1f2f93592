"""Layer norm over the last axis: y = (x − μ)/√(σ² + eps)·weight + bias, μ = mean x, σ² = mean (x − μ)².

x, y (rows, cols), weight and bias (cols,); bias may be None. Source: [baetal2016]; Welford's recurrence
[welford1962], Chan's merge of partial statistics [chan1979].
"""

import numpy as np
import torch


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> np.ndarray:
    """(rows, cols), (cols,), (cols,) -> (rows, cols)."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    cols = max(x.shape[-1], 1)  # an empty mean is 0
    centred = x - x.sum(axis=-1, keepdims=True) / cols
    variance = (centred**2).sum(axis=-1, keepdims=True) / cols
    y = centred / np.sqrt(variance + eps) * weight
    return y if bias is None else y + np.asarray(bias, np.float64)


def torch_layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, eps: float = 1e-5
) -> torch.Tensor:
    """(rows, cols), (cols,), (cols,) -> (rows, cols)."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight
    return y if bias is None else y + bias


def welford(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> np.ndarray:
    """Statistics in one pass over the columns: δ = x − μ, μ += δ/n, M2 += δ·(x − μ), σ² = M2/cols [welford1962]."""
    x = np.asarray(x, np.float64)
    mean, m2 = np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    for n, column in enumerate(np.moveaxis(x, -1, 0), start=1):
        delta = column - mean
        mean += delta / n
        m2 += delta * (column - mean)
    return _normalise(x, mean, m2 / max(x.shape[-1], 1), weight, bias, eps)


def chan(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> np.ndarray:
    """Statistics of tiles of columns, merged: M2 = M2a + M2b + δ²·na·nb/n, δ = μb − μa [chan1979]."""
    x = np.asarray(x, np.float64)
    n, mean, m2 = 0, np.zeros(x.shape[:-1]), np.zeros(x.shape[:-1])
    for start in range(0, x.shape[-1], 4):
        tile = x[..., start : start + 4]
        n, mean, m2 = _merge(n, mean, m2, tile.shape[-1], tile.mean(axis=-1), tile.var(axis=-1) * tile.shape[-1])
    return _normalise(x, mean, m2 / max(n, 1), weight, bias, eps)


def _merge(
    n1: int, mean1: np.ndarray, m2_1: np.ndarray, n2: int, mean2: np.ndarray, m2_2: np.ndarray
) -> tuple[int, np.ndarray, np.ndarray]:
    """Count, mean and sum of squared deviations of two parts together."""
    n, delta = n1 + n2, mean2 - mean1
    return n, mean1 + delta * n2 / n, m2_1 + m2_2 + delta**2 * n1 * n2 / n


def _normalise(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float
) -> np.ndarray:
    y = (x - mean[..., None]) / np.sqrt(variance + eps)[..., None] * weight
    return y if bias is None else y + bias
