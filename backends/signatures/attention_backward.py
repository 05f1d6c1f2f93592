"""attention_backward: q, o and do (B, Hq, Sq, D), k and v (B, Hkv, Sk, D), lse (B, Hq, Sq) in float32; dq, dk, dv."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads

_L2 = 16 << 20  # bytes of q, do and the sums for dq that are worked on at a time


def checked_sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    spec = "B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do)
    check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def empty_outputs(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fresh dq, dk, dv, contiguous."""
    dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (q, k, k))
    return dq, dk, dv


def pairs_together(q: torch.Tensor, k: torch.Tensor, causal: bool, keys: int, width: int, processors: int) -> int:
    """How many (batch, key head) pairs are taken at a time by programs that own `keys` keys each and add `width`
    columns of dq in float32 to memory.

    Of causal attention the longest programs of a group come first. Its heads fit into L2; where programs are few, one
    group has all, so that no long one ends alone (H200, 320 programs, 32 heads on 4: 0.95 of cuDNN, by threes 0.75).
    """
    if not causal:
        return 1
    pairs = k.shape[0] * k.shape[1]
    return pairs if pairs * -(-k.shape[2] // keys) < 8 * processors else max(2, _L2 // (8 * q.shape[2] * width))
