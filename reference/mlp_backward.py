"""Backward of mlp, with z = x·w1 + b1 and h = act(z) recomputed:

dw2 = hᵀ·dy, db2 = Σ dy over rows, dz = (dy·w2ᵀ)·act′(z), dw1 = xᵀ·dz, db1 = Σ dz over rows, dx = dz·w1ᵀ.

x, dx (M, D); w1 (D, H); b1 (H,); w2 (H, N); b2 (N,); dy (M, N). A bias that is None has gradient None. relu′(0) = 0.
Source: [rumelhart1986].
"""

import numpy as np
import torch

from touchstone.reference._activations import act, act_grad, torch_act, torch_act_grad


def mlp_backward(
    x: np.ndarray,
    w1: np.ndarray,
    b1: np.ndarray | None,
    w2: np.ndarray,
    b2: np.ndarray | None,
    dy: np.ndarray,
    *,
    activation: str = "gelu",
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray | None]:
    """(M, D), (D, H), (H,), (H, N), (N,), (M, N) -> dx, dw1, db1, dw2, db2, shaped as their operands."""
    x, w1, w2, dy = (np.asarray(t, np.float64) for t in (x, w1, w2, dy))
    z = x @ w1 if b1 is None else x @ w1 + np.asarray(b1, np.float64)
    dz = (dy @ w2.T) * act_grad(z, activation)
    db1 = None if b1 is None else dz.sum(axis=0)
    db2 = None if b2 is None else dy.sum(axis=0)
    return dz @ w1.T, x.T @ dz, db1, act(z, activation).T @ dy, db2


def torch_mlp_backward(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    dy: torch.Tensor,
    *,
    activation: str = "gelu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    """(M, D), (D, H), (H,), (H, N), (N,), (M, N) -> dx, dw1, db1, dw2, db2, shaped as their operands."""
    z = x @ w1 if b1 is None else x @ w1 + b1
    dz = (dy @ w2.mT) * torch_act_grad(z, activation)
    db1 = None if b1 is None else dz.sum(0)
    db2 = None if b2 is None else dy.sum(0)
    return dz @ w1.mT, x.mT @ dz, db1, torch_act(z, activation).mT @ dy, db2


def hidden_units(
    x: np.ndarray,
    w1: np.ndarray,
    b1: np.ndarray | None,
    w2: np.ndarray,
    b2: np.ndarray | None,
    dy: np.ndarray,
    *,
    activation: str = "gelu",
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray | None]:
    """One hidden unit at a time: each owns a column of dw1 and a row of dw2 and adds its share to dx."""
    x, w1, w2, dy = (np.asarray(t, np.float64) for t in (x, w1, w2, dy))
    bias = np.zeros(w1.shape[1]) if b1 is None else np.asarray(b1, np.float64)
    dx, dw1, db1, dw2 = np.zeros(x.shape), np.zeros(w1.shape), np.zeros(bias.shape), np.zeros(w2.shape)
    for unit in range(w1.shape[1]):
        z = x @ w1[:, unit] + bias[unit]
        dz = (dy @ w2[unit]) * act_grad(z, activation)
        dx += np.multiply.outer(dz, w1[:, unit])
        dw1[:, unit], db1[unit], dw2[unit] = dz @ x, dz.sum(), act(z, activation) @ dy
    return dx, dw1, None if b1 is None else db1, dw2, None if b2 is None else np.ones(len(dy)) @ dy
