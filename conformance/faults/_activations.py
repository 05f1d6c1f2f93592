"""The activations by torch's own functions, and wrong ones. `act(z, name)`: float32 in, float32 out."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Act = Callable[[torch.Tensor, str], torch.Tensor]


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda z: torch.where(z == math.inf, z, F.gelu(z)),  # of infinity torch 2.13 makes NaN, four at a time
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z),
    "mish": F.mish,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "identity": torch.clone,
}


def activate(z: torch.Tensor, name: str) -> torch.Tensor:
    if name not in FUNCTIONS:
        raise ValueError(f"activation: expected one of {', '.join(FUNCTIONS)}, got {name!r}")
    return FUNCTIONS[name](z)


def derivative(z: torch.Tensor, name: str) -> torch.Tensor:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(activate(z, name).sum(), z)[0]


def replaced(other: str, instead: str, function: Act = activate) -> Act:
    """`function` with the activation `other` computed as `instead`."""
    return lambda z, name: function(z, instead if name == other else name)


def identity(z: torch.Tensor, name: str) -> torch.Tensor:
    return z


def tanh_by_exp(z: torch.Tensor, name: str) -> torch.Tensor:
    """(e^2u - 1) / (e^2u + 1): inf / inf for large u."""
    if name != "gelu_tanh":
        return activate(z, name)
    e = torch.exp(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
    return z / 2 * (1 + (e - 1) / (e + 1))


def sigmoid_by_exp(z: torch.Tensor, name: str) -> torch.Tensor:
    """e^z / (1 + e^z): inf / inf for large z."""
    return z * torch.exp(z) / (1 + torch.exp(z)) if name == "silu" else activate(z, name)


def quick_gelu(z: torch.Tensor, name: str) -> torch.Tensor:
    return z * torch.sigmoid(1.702 * z) if name == "gelu" else activate(z, name)


def square_for_cube(z: torch.Tensor, name: str) -> torch.Tensor:
    if name != "gelu_tanh":
        return activate(z, name)
    return z / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**2)))


def leaky_relu(z: torch.Tensor, name: str) -> torch.Tensor:
    return F.leaky_relu(z) if name == "relu" else activate(z, name)


# other formulas, which are right
FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": lambda z: 0.5 * z * (1 + torch.erf(z * 0.70710678)),
    "gelu_tanh": lambda z: z * torch.sigmoid(1.5957691216 * (z + 0.044715 * z * z * z)),
    "silu": lambda z: z / (1 + torch.exp(-z)),
    "relu": lambda z: torch.where(z < 0, 0.0, z),
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "quick_gelu": lambda z: z / (1 + torch.exp(-1.702 * z)),
    "mish": lambda z: z * torch.tanh(torch.where(z > 20, z, torch.log1p(torch.exp(z)))),
    "elu": lambda z: torch.where(z > 0, z, torch.exp(z) - 1),
    "hardswish": lambda z: z * torch.clamp(z + 3, 0, 6) / 6,
    "hardshrink": lambda z: torch.where((z <= 0.5) & (z >= -0.5), 0.0, z),
    "identity": torch.clone,
}


def by_autograd(forward: Callable[..., torch.Tensor], dy: torch.Tensor, *operands: torch.Tensor | None):
    """The gradients of `forward(*operands)` in float32 by torch's automatic differentiation, None for None."""
    leaves = [None if t is None else t.detach().float().contiguous().requires_grad_() for t in operands]
    with torch.enable_grad():
        y = forward(*leaves)
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(y, wanted, dy.float()))
    return [None if leaf is None else next(found).clone(memory_format=torch.contiguous_format) for leaf in leaves]
