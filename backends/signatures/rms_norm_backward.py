"""rms_norm_backward: x and dy (rows, cols), weight (cols,), rstd (rows,) float32 or None; dx, dweight."""

import torch

from touchstone.backends import shapes


def checked_sizes(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, rstd: torch.Tensor | None
) -> tuple[int, int]:
    """(rows, cols) of checked operands."""
    rows, cols = shapes("rows cols, cols, rows cols, rows:float32?", x=x, weight=weight, dy=dy, rstd=rstd)
    return rows, cols


def empty_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh dx and dweight; the latter is zero where there are no rows."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return dx, (torch.empty if len(x) else torch.zeros)((x.shape[1],), dtype=x.dtype, device=x.device)
