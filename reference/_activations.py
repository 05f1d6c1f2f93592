"""Activations and their derivatives, as torch defines them; the erf gelu keeps full relative accuracy in its tail.

gelu        x·Φ(x), Φ(x) = erfc(−x/√2)/2; derivative Φ(x) + x·φ(x), φ(x) = exp(−x²/2)/√(2π) [hendrycks2016]
gelu_tanh   x·(1 + tanh u)/2, u = √(2/π)·(x + 0.044715x³); derivative (1 + tanh u)/2 + x·(1 − tanh² u)·u′/2
silu        x·σ(x), σ(x) = 1/(1 + exp(−x)); derivative σ·(1 + x·(1 − σ)) [elfwing2017]
relu        max(x, 0); derivative 1 for x > 0, else 0 [nair2010]
sigmoid     σ(x); derivative σ·(1 − σ)
quick_gelu  x·σ(1.702x) [hendrycks2016]
mish        x·tanh(log(1 + exp(x))); derivative t + x·(1 − t²)·σ(x), t that tanh [misra2019]
elu         x for x > 0, else exp(x) − 1; derivative 1, else exp(x) [clevert2015]
hardswish   x·clip(x + 3, 0, 6)/6; derivative 0 up to −3, 1 from 3 on, x/3 + 1/2 between [howard2019]
hardshrink  x where |x| > 0.5, else 0; derivative 1, else 0 [donoho1994]
identity    x

In the derivatives a NaN counts as torch has it: 1 where the formula has cases.
"""

import math

import numpy as np
import torch

NAMES = (
    "gelu",
    "gelu_tanh",
    "silu",
    "relu",
    "sigmoid",
    "quick_gelu",
    "mish",
    "elu",
    "hardswish",
    "hardshrink",
    "identity",
)
_QUICK = 1.702
_SHRUNK = 0.5
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
        case "sigmoid":
            return _sigmoid(x)
        case "quick_gelu":
            return x * _sigmoid(_QUICK * x)
        case "mish":
            return x * np.tanh(np.logaddexp(x, 0))
        case "elu":
            return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        case "hardswish":
            return x * np.clip(x + 3, 0, 6) / 6
        case "hardshrink":
            return np.where(np.abs(x) <= _SHRUNK, 0.0, x)
        case "identity":
            return x.copy()
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
            return np.where(x <= 0, 0.0, 1.0)
        case "sigmoid":
            return _sigmoid(x) * _sigmoid(-x)
        case "quick_gelu":
            s = _sigmoid(_QUICK * x)
            return s * (1 + _QUICK * x * (1 - s))
        case "mish":
            t = np.tanh(np.logaddexp(x, 0))
            return t + x * (1 - t * t) * _sigmoid(x)
        case "elu":
            return np.where(x <= 0, np.exp(np.minimum(x, 0)), 1.0)
        case "hardswish":
            return np.where(x <= -3, 0.0, np.where(x < 3, x / 3 + 0.5, 1.0))
        case "hardshrink":
            return np.where(np.abs(x) <= _SHRUNK, 0.0, 1.0)
        case "identity":
            return np.ones_like(x)
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
        case "sigmoid":
            return torch.sigmoid(x)
        case "quick_gelu":
            return x * torch.sigmoid(_QUICK * x)
        case "mish":
            return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
        case "elu":
            return torch.where(x > 0, x, torch.expm1(x.clamp(max=0)))
        case "hardswish":
            return x * (x + 3).clamp(0, 6) / 6
        case "hardshrink":
            return torch.where(x.abs() <= _SHRUNK, torch.zeros_like(x), x)
        case "identity":
            return x.clone()
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
            return torch.where(x <= 0, 0.0, 1.0).to(x.dtype)
        case "sigmoid":
            return torch.sigmoid(x) * torch.sigmoid(-x)
        case "quick_gelu":
            s = torch.sigmoid(_QUICK * x)
            return s * (1 + _QUICK * x * (1 - s))
        case "mish":
            t = torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
            return t + x * (1 - t * t) * torch.sigmoid(x)
        case "elu":
            return torch.where(x <= 0, torch.exp(x.clamp(max=0)), torch.ones_like(x))
        case "hardswish":
            return torch.where(x <= -3, 0.0, torch.where(x < 3, x / 3 + 0.5, 1.0)).to(x.dtype)
        case "hardshrink":
            return torch.where(x.abs() <= _SHRUNK, 0.0, 1.0).to(x.dtype)
        case "identity":
            return torch.ones_like(x)
    raise ValueError(f"activation: expected one of {', '.join(NAMES)}, got {name!r}")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1, e) / (1 + e)
