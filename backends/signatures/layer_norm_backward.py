"""layer_norm_backward: x, dy (rows, cols), weight (cols,), mean, rstd (rows,) float32 or None; dx, dweight, dbias."""

import torch

from touchstone.backends import shapes


def checked_sizes(
    x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor, mean: torch.Tensor | None, rstd: torch.Tensor | None
) -> tuple[int, int]:
    """(rows, cols) of checked operands."""
    spec = "rows cols, cols, rows cols, rows:float32?, rows:float32?"
    rows, cols = shapes(spec, x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    return rows, cols


def empty_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fresh dx, dweight and dbias; the last two are zero where there are no rows."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    allocate = torch.empty if len(x) else torch.zeros
    dweight, dbias = (allocate((x.shape[1],), dtype=x.dtype, device=x.device) for _ in range(2))
    return dx, dweight, dbias
