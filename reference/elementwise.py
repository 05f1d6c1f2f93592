"""Sum or product of two tensors of one shape, element by element; as IEEE 754 has it, so that inf - inf is NaN.

a, b and y have any shape, the same one; `function` is "add" or "mul". ValueError for another one. Source: [cuda2025].
"""

import math

import numpy as np
import torch


def elementwise(a: np.ndarray, b: np.ndarray, *, function: str = "add") -> np.ndarray:
    """Two of any one shape -> that shape."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    match function:
        case "add":
            return a + b
        case "mul":
            return a * b
    raise ValueError(f"function: expected add or mul, got {function!r}")


def torch_elementwise(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """Two of any one shape -> that shape."""
    match function:
        case "add":
            return a + b
        case "mul":
            return a * b
    raise ValueError(f"function: expected add or mul, got {function!r}")


def one_by_one(a: np.ndarray, b: np.ndarray, *, function: str = "add") -> np.ndarray:
    """Each pair by Python's own numbers."""
    pairs = zip(np.ravel(a).tolist(), np.ravel(b).tolist(), strict=True)
    found = [math.fsum(pair) if function == "add" else math.prod(pair) for pair in pairs]
    return np.array(found, np.float64).reshape(np.shape(a))
