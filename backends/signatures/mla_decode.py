"""mla_decode: q (B, H, Sq, W), cache (B, Sk, W), lengths (B,) int32; o (B, H, Sq, dim_v), lse (B, H, Sq) in float32."""

import torch

from touchstone.backends import shapes

WIDEST = 576  # columns of a row of the cache: 512 of the latent and 64 of the rotary embedding


def checked_sizes(
    q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, dim_v: int
) -> tuple[int, int, int, int, int]:
    """(B, H, Sq, W, Sk) of checked operands."""
    B, H, Sq, W, Sk = shapes("B H Sq W, B Sk W, B:int32", q=q, cache=cache, lengths=lengths)
    if not 1 <= W <= WIDEST:
        raise ValueError(f"cache: rows of {W} columns; expected 1 to {WIDEST}")
    if not 1 <= dim_v <= W:
        raise ValueError(f"dim_v: {dim_v}; expected 1 to {W}, the columns of cache")
    return B, H, Sq, W, Sk


def empty_outputs(q: torch.Tensor, dim_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o (B, H, Sq, dim_v) like q and lse (B, H, Sq) in float32, both contiguous."""
    o = torch.empty((*q.shape[:3], dim_v), dtype=q.dtype, device=q.device)
    return o, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
