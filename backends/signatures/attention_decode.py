"""attention_decode: q (B, Hq, Sq, D), k and v (B, Hkv, Sk, D), lengths (B,) int32; o like q, lse (B, Hq, Sq) in
float32."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads

SPLITS = 32  # at most


def checked_sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    spec = "B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B:int32"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, lengths=lengths)
    check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def splits_of(Sk: int, least: int = 64, most: int = SPLITS) -> tuple[int, int]:
    """How many parts a cache is cut into, `most` or fewer, and the keys of each: `least` or a multiple of it."""
    keys = least * max(1, -(-Sk // (least * most)))
    return max(1, -(-Sk // keys)), keys


def empty_parts(q: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh outputs of the parts, (B·Hq·Sq, splits, D), and their lse, in float32."""
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    o = torch.empty((rows, splits, q.shape[3]), dtype=torch.float32, device=q.device)
    return o, torch.empty((rows, splits), dtype=torch.float32, device=q.device)
