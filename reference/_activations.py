"""Activations and their derivatives, as torch defines them; the erf gelu keeps full relative accuracy in its tail.

gelu       x·Φ(x), Φ(x) = erfc(−x/√2)/2; derivative Φ(x) + x·φ(x), φ(x) = exp(−x²/2)/√(2π) [hendrycks2016]
gelu_tanh  x·(1 + tanh u)/2, u = √(2/π)·(x + 0.044715x³); derivative (1 + tanh u)/2 + x·(1 − tanh² u)·u′/2
silu       x·σ(x), σ(x) = 1/(1 + exp(−x)); derivative σ·(1 + x·(1 − σ)) [elfwing2017]
relu       max(x, 0); derivative 1 for x > 0, else 0 [nair2010]
"""

import math

import numpy as np
import torch

NAMES = ("gelu", "gelu_tanh", "silu", "relu")
_CUBIC = 0.044715
_SLOPE = math.sqrt(2 / math.pi)
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def act(x: np.ndarray, name: str) -> np.ndarray:
    """The activation `name` of float64 `x`, elementwise; ValueError where the name is unknown."""
    match name:
        case "gelu":
            return x * _erfc(-x / math.sqrt(2)) / 2
        case "gelu_tanh":
            return x * (1 + np.tanh(_SLOPE * (x + _CUBIC * x**3))) / 2
        case "silu":
            return x * _sigmoid(x)
        case "relu":
            return np.maximum(x, 0)
    raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {name!r}")


def act_grad(x: np.ndarray, name: str) -> np.ndarray:
    """The derivative of the activation `name` at float64 `x`, elementwise."""
    match name:
        case "gelu":
            return _erfc(-x / math.sqrt(2)) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        case "gelu_tanh":
            t = np.tanh(_SLOPE * (x + _CUBIC * x**3))
            return (1 + t) / 2 + x * (1 - t * t) * _SLOPE * (1 + 3 * _CUBIC * x * x) / 2
        case "silu":
            s = _sigmoid(x)
            return s * (1 + x * (1 - s))
        case "relu":
            return (x > 0).astype(np.float64)
    raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {name!r}")


def torch_act(x: torch.Tensor, name: str) -> torch.Tensor:
    """`act` on torch tensors."""
    match name:
        case "gelu":
            return x * torch.special.erfc(-x / math.sqrt(2)) / 2
        case "gelu_tanh":
            return x * (1 + torch.tanh(_SLOPE * (x + _CUBIC * x**3))) / 2
        case "silu":
            return x * torch.sigmoid(x)
        case "relu":
            return torch.relu(x)
    raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {name!r}")


def torch_act_grad(x: torch.Tensor, name: str) -> torch.Tensor:
    """`act_grad` on torch tensors."""
    match name:
        case "gelu":
            return torch.special.erfc(-x / math.sqrt(2)) / 2 + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        case "gelu_tanh":
            t = torch.tanh(_SLOPE * (x + _CUBIC * x**3))
            return (1 + t) / 2 + x * (1 - t * t) * _SLOPE * (1 + 3 * _CUBIC * x * x) / 2
        case "silu":
            s = torch.sigmoid(x)
            return s * (1 + x * (1 - s))
        case "relu":
            return (x > 0).to(x.dtype)
    raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {name!r}")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1, e) / (1 + e)
