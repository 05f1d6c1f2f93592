"""masked_attention_backward: as masked_attention, with o and do (B, Hq, Sq, D) and lse (B, Hq, Sq) in float32."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads
from touchstone.backends.signatures.masked_attention import OPTIONAL


def checked_sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    **optional: torch.Tensor | None,
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands; the optional ones are bias, slopes, seg_q and seg_k."""
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D, {OPTIONAL}"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do, **optional)
    check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk
