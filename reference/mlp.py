"""Fused MLP [vaswani2017]: y = h·w2 + b2, h = act(x·w1 + b1).

x (M, D), w1 (D, H), b1 (H,), w2 (H, N), b2 (N,), y (M, N); either bias may be None. Activations: gelu (erf),
gelu_tanh [hendrycks2016], silu, relu.
"""

import numpy as np
import torch

from touchstone.reference._activations import act, torch_act


def mlp(
    x: np.ndarray,
    w1: np.ndarray,
    b1: np.ndarray | None,
    w2: np.ndarray,
    b2: np.ndarray | None,
    *,
    activation: str = "gelu",
) -> np.ndarray:
    """(M, D), (D, H), (H,), (H, N), (N,) -> (M, N)."""
    x, w1, w2 = (np.asarray(t, np.float64) for t in (x, w1, w2))
    h = act(x @ w1 + _or_zero(b1), activation)
    return h @ w2 + _or_zero(b2)


def torch_mlp(
    x: torch.Tensor,
    w1: torch.Tensor,
    b1: torch.Tensor | None,
    w2: torch.Tensor,
    b2: torch.Tensor | None,
    *,
    activation: str = "gelu",
) -> torch.Tensor:
    """(M, D), (D, H), (H,), (H, N), (N,) -> (M, N)."""
    h = torch_act(x @ w1 if b1 is None else x @ w1 + b1, activation)
    return h @ w2 if b2 is None else h @ w2 + b2


def hidden_tiles(
    x: np.ndarray,
    w1: np.ndarray,
    b1: np.ndarray | None,
    w2: np.ndarray,
    b2: np.ndarray | None,
    *,
    activation: str = "gelu",
) -> np.ndarray:
    """Both products in one pass over tiles of hidden columns, so that h is never whole: Σ act(x·w1ₜ + b1ₜ)·w2ₜ."""
    x, w1, w2 = (np.asarray(t, np.float64) for t in (x, w1, w2))
    y = np.zeros((x.shape[0], w2.shape[1]))
    for start in range(0, w1.shape[1], 4):
        tile = slice(start, start + 4)
        z = np.einsum("md,dh->mh", x, w1[:, tile])
        y += np.einsum("mh,hn->mn", act(z if b1 is None else z + b1[tile], activation), w2[tile])
    return y if b2 is None else y + b2


def _or_zero(bias: np.ndarray | None) -> np.ndarray:
    return np.zeros(1) if bias is None else np.asarray(bias, np.float64)
