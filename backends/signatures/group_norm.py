"""group_norm: x (N, C, ...), weight (C,), bias (C,) or None; y like x."""

import torch

from touchstone.backends import shapes


def checked_sizes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int) -> tuple[int, int]:
    """(N, C) of checked operands, whose channels divide into `groups`."""
    samples, channels = shapes("N C ..., C, C?", x=x, weight=weight, bias=bias)
    if groups < 1 or channels % groups:
        raise ValueError(f"groups: {channels} channels do not divide into {groups} groups")
    return samples, channels
