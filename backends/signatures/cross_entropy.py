"""cross_entropy: logits (rows, V), target (rows,) int64 or int32; loss in float32, (rows,) with reduction "none", or
()."""

import torch

from touchstone.backends import shapes

REDUCTIONS = ("mean", "sum", "none")


def checked_sizes(
    logits: torch.Tensor, target: torch.Tensor, reduction: str, label_smoothing: float
) -> tuple[int, int]:
    """(rows, V) of checked operands."""
    rows, V = shapes("rows V, rows:int64|int32", logits=logits, target=target)
    check_options(reduction, label_smoothing)
    return rows, V


def check_options(reduction: str, label_smoothing: float) -> None:
    """Raise ValueError unless the reduction is known and the smoothing a share."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: expected 0 to 1, got {label_smoothing!r}")


def empty_losses(logits: torch.Tensor) -> torch.Tensor:
    """Fresh losses of the rows."""
    return torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)


def empty_loss(logits: torch.Tensor, reduction: str) -> torch.Tensor:
    """A fresh sum or mean; that of no rows: 0 or NaN."""
    none = float("nan") if reduction == "mean" else 0.0
    return torch.full((), none, dtype=torch.float32, device=logits.device)
