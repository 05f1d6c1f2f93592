"""Backward of rope: pairs of dimensions of dq's and dk's heads turned back by their token's row of cos and sin.

pairs: a program a token, whose rows of the tables are read once for all heads of dq and dk [hsu2024]
"""

import torch

from touchstone.backends.triton.lib.rope import by_pairs
from touchstone.backends.variants import variant


@variant()
def pairs(
    dq: torch.Tensor,
    dk: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, S, D), (B, Hkv, S, D), (P, R/2) twice, (B, S) or None -> like dq, like dk. Source: [hsu2024]."""
    return by_pairs((dq, dk, cos, sin, positions), interleaved, -1, ("dq", "dk"))
