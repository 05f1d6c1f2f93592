"""Rotary position embedding: each pair of dimensions of q's and k's heads turned by its token's row of cos and sin.

naive: a thread an element, which reads its partner and both tables; a launch each for q and k [suetal2021]
pairs: a thread a pair, which is read once, and one launch for q and k [hsu2024]
vectorised: 16 bytes of both sides of the pairs at once, where rows are whole vectors of them [xlite2025]
"""

import torch

from touchstone.backends.numba.lib.rope import by_elements, by_pairs, by_vectors
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


@variant()
def vectorised(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, Hq, S, D), (B, Hkv, S, D), (P, R/2) twice, (B, S) or None -> like q, like k.

    Heads that are not whole 16-byte vectors, or R/2 that is none, are moved a pair at a time. Source: [xlite2025].
    """
    return by_vectors((q, k, cos, sin, positions), interleaved, 1, ("q", "k"))
