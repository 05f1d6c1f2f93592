"""y = act(x + bias), element by element, for the eleven activations of _activations.py.

x and y (rows, cols), bias (cols,) or None. ValueError for a name that is none of them. Sources: [hendrycks2016],
[elfwing2017], [nair2010], [misra2019], [clevert2015], [howard2019], [donoho1994].
"""

import math

import numpy as np
import torch

from touchstone.reference._activations import act, torch_act


def activation(x: np.ndarray, bias: np.ndarray | None, *, activation: str = "gelu") -> np.ndarray:
    """(rows, cols), (cols,) or None -> (rows, cols)."""
    x = np.asarray(x, np.float64)
    return act(x if bias is None else x + np.asarray(bias, np.float64), activation)


def torch_activation(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """(rows, cols), (cols,) or None -> (rows, cols)."""
    return torch_act(x if bias is None else x + bias, activation)


def one_by_one(x: np.ndarray, bias: np.ndarray | None, *, activation: str = "gelu") -> np.ndarray:
    """Each element by Python's mathematical functions, from the formula as it is printed."""
    rows, cols = np.shape(x)
    y = np.empty((rows, cols))
    for i in range(rows):
        for j in range(cols):
            y[i, j] = _printed(float(x[i, j]) + (0.0 if bias is None else float(bias[j])), activation)
    return y


def _printed(z: float, name: str) -> float:
    match name:
        case "gelu":
            return z * (1 + math.erf(z / math.sqrt(2))) / 2
        case "gelu_tanh":
            return z * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2
        case "silu":
            return z / (1 + math.exp(-z))
        case "relu":
            return z if z > 0 else 0.0
        case "sigmoid":
            return 1 / (1 + math.exp(-z))
        case "quick_gelu":
            return z / (1 + math.exp(-1.702 * z))
        case "mish":
            return z * math.tanh(math.log(1 + math.exp(z)))
        case "elu":
            return z if z > 0 else math.exp(z) - 1
        case "hardswish":
            return 0.0 if z <= -3 else z if z >= 3 else z * (z + 3) / 6
        case "hardshrink":
            return z if z > 0.5 or z < -0.5 else 0.0
        case "identity":
            return z
    raise ValueError(f"activation: {name!r} has no formula")
