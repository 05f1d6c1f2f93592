"""online_softmax: x (rows, cols); y like x, lse (rows,) in float32."""

import torch

from touchstone.backends import shapes


def empty_outputs(x: torch.Tensor) -> tuple[int, int, torch.Tensor, torch.Tensor]:
    """rows, cols, and fresh y and lse of a checked operand; lse is -inf where there are no columns."""
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.empty(rows, dtype=torch.float32, device=x.device)
    return rows, cols, y, lse if cols else lse.fill_(float("-inf"))
