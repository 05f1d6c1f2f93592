"""Gradients of y = act(x + bias) with the upstream gradient dy, for the eleven activations of _activations.py.

dx = dy·act'(x + bias), (rows, cols) as x and dy; dbias = its sum over rows, (cols,), None where bias is None. Source:
[hendrycks2016] and the other activations' own.
"""

import numpy as np
import torch

from touchstone.reference._activations import act_grad, torch_act, torch_act_grad


def activation_backward(
    x: np.ndarray, bias: np.ndarray | None, dy: np.ndarray, *, activation: str = "gelu"
) -> tuple[np.ndarray, np.ndarray | None]:
    """(rows, cols), (cols,) or None, (rows, cols) -> dx (rows, cols), dbias (cols,) or None."""
    x, dy = np.asarray(x, np.float64), np.asarray(dy, np.float64)
    dx = dy * act_grad(x if bias is None else x + np.asarray(bias, np.float64), activation)
    return dx, None if bias is None else dx.sum(axis=0)


def torch_activation_backward(
    x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(rows, cols), (cols,) or None, (rows, cols) -> dx (rows, cols), dbias (cols,) or None."""
    dx = dy * torch_act_grad(x if bias is None else x + bias, activation)
    return dx, None if bias is None else dx.sum(0)


def by_autograd(
    x: np.ndarray, bias: np.ndarray | None, dy: np.ndarray, *, activation: str = "gelu"
) -> tuple[np.ndarray, np.ndarray | None]:
    """torch's differentiation of act(x + bias), in float64; the bias is summed by what broadcast it."""
    leaves = [torch.from_numpy(np.array(t, np.float64)).requires_grad_() for t in (x, bias) if t is not None]
    with torch.enable_grad():
        y = torch_act(leaves[0] if bias is None else leaves[0] + leaves[1], activation)
        found = torch.autograd.grad(y, leaves, torch.from_numpy(np.array(dy, np.float64)))
    return found[0].numpy(), None if bias is None else found[1].numpy()
