"""Gated linear unit without its projections: y = act(gate)·up, element by element [shazeer2020].

gate, up and y (rows, cols). With silu it is SwiGLU's, with gelu GeGLU's, with sigmoid that of the first GLU.
"""

import numpy as np
import torch

from touchstone.reference._activations import act, torch_act


def glu(gate: np.ndarray, up: np.ndarray, *, activation: str = "silu") -> np.ndarray:
    """(rows, cols) twice -> (rows, cols)."""
    return act(np.asarray(gate, np.float64), activation) * np.asarray(up, np.float64)


def torch_glu(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """(rows, cols) twice -> (rows, cols)."""
    return torch_act(gate, activation) * up


def joined(gate: np.ndarray, up: np.ndarray, *, activation: str = "silu") -> np.ndarray:
    """Of one tensor (rows, 2·cols) as a joined projection leaves it, whose rows are a gate and an up side by side."""
    rows, cols = np.shape(gate)
    both = np.concatenate([gate, up], axis=1, dtype=np.float64).reshape(rows, 2, cols)
    return np.einsum("rc,rc->rc", act(both[:, 0], activation), both[:, 1])
