"""attention_backward: q, o and do (B, Hq, Sq, D), k and v (B, Hkv, Sk, D), lse (B, Hq, Sq) in float32; dq, dk, dv."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads


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
