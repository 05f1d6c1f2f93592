"""Group norm: y = (x − μ)/√(σ² + eps)·weight + bias, μ and σ² over the C/groups channels of a group and all later axes.

x, y (N, C, *) with any number of trailing axes, weight and bias (C,); bias may be None; C is a multiple of groups.
Source: [wuhe2018].
"""

import numpy as np
import torch


def group_norm(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, groups: int, eps: float = 1e-5
) -> np.ndarray:
    """(N, C, *), (C,), (C,) -> (N, C, *)."""
    x, per_channel = np.asarray(x, np.float64), (-1,) + (1,) * (np.ndim(x) - 2)
    size = x[:1].size // groups
    grouped = x.reshape(x.shape[0], groups, size)
    centred = grouped - grouped.sum(axis=-1, keepdims=True) / max(size, 1)  # an empty mean is 0
    variance = (centred**2).sum(axis=-1, keepdims=True) / max(size, 1)
    y = (centred / np.sqrt(variance + eps)).reshape(x.shape) * np.asarray(weight, np.float64).reshape(per_channel)
    return y if bias is None else y + np.asarray(bias, np.float64).reshape(per_channel)


def torch_group_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, groups: int, eps: float = 1e-5
) -> torch.Tensor:
    """(N, C, *), (C,), (C,) -> (N, C, *)."""
    per_channel = (-1,) + (1,) * (x.ndim - 2)
    grouped = x.reshape(x.shape[0], groups, x[:1].numel() // groups)
    centred = grouped - grouped.mean(-1, keepdim=True)
    y = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)).reshape(x.shape)
    y = y * weight.reshape(per_channel)
    return y if bias is None else y + bias.reshape(per_channel)


def merged_channels(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, groups: int, eps: float = 1e-5
) -> np.ndarray:
    """Mean and variance of every channel, merged over the channels of a group: σ² = mean σ_c² + variance of the μ_c."""
    x = np.asarray(x, np.float64)
    if x.size == 0:
        return np.zeros(x.shape)
    flat, y = x.reshape(*x.shape[:2], -1), np.empty((*x.shape[:2], x[0, 0].size))
    for part in np.split(np.arange(x.shape[1]), groups):
        means = np.einsum("ncl->nc", flat[:, part]) / flat.shape[2]
        squares = ((flat[:, part] - means[..., None]) ** 2).sum(axis=-1) / flat.shape[2]
        rstd = (squares.mean(axis=1) + means.var(axis=1) + eps) ** -0.5
        y[:, part] = (flat[:, part] - means.mean(axis=1)[:, None, None]) * np.multiply.outer(rstd, weight[part])[
            ..., None
        ]
    return (y if bias is None else y + bias[:, None]).reshape(x.shape)
