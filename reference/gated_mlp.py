"""Gated MLP (SwiGLU, GeGLU): y = (act(x·w_gate)·(x·w_up))·w_down, the inner product elementwise.

x (M, D), w_gate and w_up (D, H), w_down (H, N), y (M, N). Source: [shazeer2020].
"""

import numpy as np
import torch

from touchstone.reference._activations import act, torch_act


def gated_mlp(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, *, activation: str = "silu"
) -> np.ndarray:
    """(M, D), (D, H), (D, H), (H, N) -> (M, N)."""
    x, w_gate, w_up, w_down = (np.asarray(t, np.float64) for t in (x, w_gate, w_up, w_down))
    return (act(x @ w_gate, activation) * (x @ w_up)) @ w_down


def torch_gated_mlp(
    x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor, *, activation: str = "silu"
) -> torch.Tensor:
    """(M, D), (D, H), (D, H), (H, N) -> (M, N)."""
    return (torch_act(x @ w_gate, activation) * (x @ w_up)) @ w_down


def one_product(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, *, activation: str = "silu"
) -> np.ndarray:
    """Gate and up projection as one product with [w_gate | w_up], then split, like a fused QKV [tosaki2025]."""
    both = np.asarray(x, np.float64) @ np.concatenate([w_gate, w_up], axis=1, dtype=np.float64)
    gate, up = np.split(both, 2, axis=1)
    return (act(gate, activation) * up) @ np.asarray(w_down, np.float64)


def hidden_tiles(
    x: np.ndarray, w_gate: np.ndarray, w_up: np.ndarray, w_down: np.ndarray, *, activation: str = "silu"
) -> np.ndarray:
    """One pass over tiles of hidden columns, so that the hidden tensor is never whole."""
    x, w_gate, w_up, w_down = (np.asarray(t, np.float64) for t in (x, w_gate, w_up, w_down))
    y = np.zeros((x.shape[0], w_down.shape[1]))
    for start in range(0, w_gate.shape[1], 4):
        tile = slice(start, start + 4)
        gate, up = (np.einsum("md,dh->mh", x, w[:, tile]) for w in (w_gate, w_up))
        y += np.einsum("mh,mh,hn->mn", act(gate, activation), up, w_down[tile])
    return y
