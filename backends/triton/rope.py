"""Rotary position embedding: each pair of dimensions of q's and k's heads turned by its token's row of cos and sin.

naive: a program for neighbouring elements, each with its partner and both tables; q and k apart [suetal2021]
pairs: a program a token, whose rows of the tables are read once for all heads of q and k [hsu2024]
"""

import torch

from touchstone.backends.triton.lib.rope import by_elements, by_pairs
from touchstone.backends.variants import variant


@variant()
def naive(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, S, D), (B, Hkv, S, D), (P, R/2) twice, (B, S) or None -> like q, like k. Source: [suetal2021]."""
    return by_elements((q, k, cos, sin, positions), interleaved, 1)


@variant()
def pairs(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, S, D), (B, Hkv, S, D), (P, R/2) twice, (B, S) or None -> like q, like k. Source: [hsu2024]."""
    return by_pairs((q, k, cos, sin, positions), interleaved, 1, ("q", "k"))
