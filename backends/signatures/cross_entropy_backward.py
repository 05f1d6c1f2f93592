"""cross_entropy_backward: logits (rows, V), target (rows,) int64 or int32, lse (rows,) float32 or None, dloss float32,
(rows,) with reduction "none", or (); dlogits like logits."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.cross_entropy import check_options


def checked_sizes(
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor | None,
    dloss: torch.Tensor,
    reduction: str,
    label_smoothing: float,
) -> tuple[int, int]:
    """(rows, V) of checked operands."""
    check_options(reduction, label_smoothing)
    each = "rows" if reduction == "none" else "()"
    spec = f"rows V, rows:int64|int32, rows:float32?, {each}:float32"
    rows, V = shapes(spec, logits=logits, target=target, lse=lse, dloss=dloss)
    return rows, V


def empty_gradient(logits: torch.Tensor) -> torch.Tensor:
    """Fresh dlogits, contiguous."""
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
