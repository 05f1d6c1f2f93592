"""bias_dropout_residual: x and residual (rows, cols), bias (cols,) or None; y like x."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import Rule, checked


def empty_output(
    x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, p: float, seed: int, offset: int
) -> tuple[torch.Tensor, Rule]:
    """A fresh y, contiguous, and the rule of the dropout, of checked operands."""
    shapes("rows cols, cols?, rows cols", x=x, bias=bias, residual=residual)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), checked(p, seed, offset)


def step_of(bias: torch.Tensor | None) -> int:
    """The stride of bias, 0 where there is none."""
    return 0 if bias is None else bias.stride(0)
