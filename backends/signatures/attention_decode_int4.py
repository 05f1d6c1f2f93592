"""attention_decode_int4: q (B, Hq, Sq, D), codes (B, Hkv, Sk, D/2) uint8, scales (B, Hkv, Sk, G, 2), lengths (B,)
int32; o like q, lse (B, Hq, Sq) in float32."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.attention import check_heads


def checked_sizes(
    q: torch.Tensor,
    k_codes: torch.Tensor,
    k_scales: torch.Tensor,
    v_codes: torch.Tensor,
    v_scales: torch.Tensor,
    lengths: torch.Tensor,
) -> tuple[int, int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk, G) of checked operands."""
    codes, scales = "B Hkv Sk D/2:uint8", "B Hkv Sk G 2"
    B, Hq, Sq, D, Hkv, Sk, G = shapes(
        f"B Hq Sq D, {codes}, {scales}, {codes}, {scales}, B:int32",
        q=q,
        k_codes=k_codes,
        k_scales=k_scales,
        v_codes=v_codes,
        v_scales=v_scales,
        lengths=lengths,
    )
    check_heads(Hq, Hkv, D)
    if not G or D % G:
        raise ValueError(f"k_scales: {G} groups; expected a divisor of D = {D}")
    return B, Hq, Sq, D, Hkv, Sk, G
