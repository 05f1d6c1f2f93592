"""The operands of activation_backward, checked."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures._activations import check_activation

Gradients = tuple[torch.Tensor, torch.Tensor | None]


def checked_outputs(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, activation: str) -> Gradients:
    """dx (rows, cols), of unknown values, and dbias (cols,), None without a bias; zeros where there are no rows."""
    rows, cols = shapes("rows cols, cols?, rows cols", x=x, bias=bias, dy=dy)
    check_activation(activation)
    dx = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if bias is None:
        return dx, None
    return dx, (torch.empty if rows else torch.zeros)(cols, dtype=x.dtype, device=x.device)


def parts_of(rows: int, most: int = 64, least: int = 64) -> int:
    """Parts that the rows are summed in, `most` of them or fewer, of `least` rows or more each."""
    return max(1, min(most, rows // least))
