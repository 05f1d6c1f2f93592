"""Gradients of y = act(gate)·up with the upstream gradient dy [shazeer2020].

dgate = dy·up·act'(gate), dup = dy·act(gate); all are (rows, cols).
"""

import numpy as np
import torch

from touchstone.reference._activations import act, act_grad, torch_act, torch_act_grad


def glu_backward(
    gate: np.ndarray, up: np.ndarray, dy: np.ndarray, *, activation: str = "silu"
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, cols) three times -> dgate, dup, (rows, cols) each."""
    gate, up, dy = (np.asarray(t, np.float64) for t in (gate, up, dy))
    return dy * up * act_grad(gate, activation), dy * act(gate, activation)


def torch_glu_backward(
    gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, cols) three times -> dgate, dup, (rows, cols) each."""
    return dy * up * torch_act_grad(gate, activation), dy * torch_act(gate, activation)


def by_autograd(
    gate: np.ndarray, up: np.ndarray, dy: np.ndarray, *, activation: str = "silu"
) -> tuple[np.ndarray, np.ndarray]:
    """torch's differentiation of the product, in float64."""
    leaves = [torch.from_numpy(np.array(t, np.float64)).requires_grad_() for t in (gate, up)]
    with torch.enable_grad():
        y = torch_act(leaves[0], activation) * leaves[1]
        dgate, dup = torch.autograd.grad(y, leaves, torch.from_numpy(np.array(dy, np.float64)))
    return dgate.numpy(), dup.numpy()
