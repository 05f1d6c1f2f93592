"""RMS norm over the last axis: y = x/√(mean x² + eps)·weight, with x, y (rows, cols), weight (cols,) [zhang2019]."""

import numpy as np
import torch


def rms_norm(x: np.ndarray, weight: np.ndarray, *, eps: float = 1e-6) -> np.ndarray:
    """(rows, cols), (cols,) -> (rows, cols)."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    cols = max(x.shape[-1], 1)  # an empty mean is 0
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) / cols + eps) * weight


def torch_rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """(rows, cols), (cols,) -> (rows, cols)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def scaled(x: np.ndarray, weight: np.ndarray, *, eps: float = 1e-6) -> np.ndarray:
    """Each row divided by its largest |x| first, eps by its square: no square of x overflows."""
    x = np.asarray(x, np.float64)
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    largest = np.where(largest == 0, 1, largest)
    unit = x / largest
    square = np.einsum("...c,...c->...", unit, unit)[..., None] / max(x.shape[-1], 1)
    return unit * weight / np.sqrt(square + (np.sqrt(eps) / largest) ** 2)


def tiled(x: np.ndarray, weight: np.ndarray, *, eps: float = 1e-6) -> np.ndarray:
    """The squares summed tile after tile: the looped kernel's first pass."""
    x = np.asarray(x, np.float64)
    total = np.zeros(x.shape[:-1])
    for start in range(0, x.shape[-1], 4):
        total += (x[..., start : start + 4] ** 2).sum(axis=-1)
    return x * (weight * ((total / max(x.shape[-1], 1) + eps) ** -0.5)[..., None])
