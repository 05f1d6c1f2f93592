"""Backward of rope: pairs of dimensions of dq's and dk's heads turned back by their token's row of cos and sin.

pairs: a thread a pair, which is read once, and one launch for dq and dk [hsu2024]
vectorised: 16 bytes of both sides of the pairs at once, where rows are whole vectors of them [xlite2025]
"""

import torch

from touchstone.backends.numba.lib.rope import by_pairs, by_vectors
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


@variant()
def vectorised(
    dq: torch.Tensor,
    dk: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, S, D), (B, Hkv, S, D), (P, R/2) twice, (B, S) or None -> like dq, like dk.

    Heads that are not whole 16-byte vectors, or R/2 that is none, are moved a pair at a time. Source: [xlite2025].
    """
    return by_vectors((dq, dk, cos, sin, positions), interleaved, -1, ("dq", "dk"))
