"""rope and rope_backward: q (B, Hq, S, D), k (B, Hkv, S, D), cos and sin (P, R/2) of float32 or their dtype, positions
(B, S) of integers or None; outputs like q and k."""

import torch

from touchstone.backends import shapes


def checked_sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    names: tuple[str, str] = ("q", "k"),
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Hkv, S, D, R/2) of checked operands; `names` are those of the first two."""
    spec = "B Hq S D, B Hkv S D, P half:float32|same, P half:float32|same, B S:int64|int32?"
    operands = {names[0]: q, names[1]: k, "cos": cos, "sin": sin, "positions": positions}
    B, Hq, S, D, Hkv, P, half = shapes(spec, **operands)
    if cos.dtype != sin.dtype:
        raise TypeError(f"sin: dtype {sin.dtype}, but cos has {cos.dtype}")
    if 2 * half > D:
        raise ValueError(f"cos: {half} columns for pairs of dimensions, but {names[0]} has {D} dimensions")
    if positions is None and P < S:
        raise ValueError(f"cos: {P} rows for the positions of {S} tokens")
    return B, Hq, Hkv, S, D, half


def empty_outputs(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh outputs like q and k, contiguous."""
    one, other = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    return one, other
