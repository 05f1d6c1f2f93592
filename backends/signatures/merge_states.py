"""merge_states: o (P, rows, D), lse (P, rows) float32; merged o (rows, D) in o's dtype, lse (rows,) float32."""

import torch

from touchstone.backends import shapes


def checked(o: torch.Tensor, lse: torch.Tensor) -> tuple[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]]:
    """(P, rows, D) of checked operands, and fresh contiguous outputs."""
    parts, rows, dim = shapes("P rows D, P rows:float32", o=o, lse=lse)
    merged = torch.empty((rows, dim), dtype=o.dtype, device=o.device)
    return (parts, rows, dim), (merged, torch.empty(rows, dtype=torch.float32, device=o.device))
