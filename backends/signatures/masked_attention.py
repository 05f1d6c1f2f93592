"""masked_attention and its backward: q (B, Hq, Sq, D), k and v (B, Hkv, Sk, D), bias (B, Hq, Sq, Sk), slopes (Hq,) of
float32, seg_q (B, Sq) and seg_k (B, Sk) of int32, the last four optional."""

from typing import NamedTuple

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures import _dropout
from touchstone.backends.signatures.attention import check_heads, scale_or_default

OPTIONAL = "B Hq Sq Sk?, Hq:float32?, B Sq:int32?, B Sk:int32?"


class Mods(NamedTuple):
    """What a call does to its scores: the optional operands, then plain numbers."""

    bias: torch.Tensor | None
    slopes: torch.Tensor | None
    seg_q: torch.Tensor | None
    seg_k: torch.Tensor | None
    causal: bool
    window: int  # keys before the own one that are seen, and after it where not causal, the own one too
    softcap: float  # 0 for none
    scale: float
    dropout: _dropout.Rule

    @property
    def drops(self) -> bool:
        """Whether dropout drops anything."""
        return self.dropout.threshold > 0


def checked_sizes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    seg_q: torch.Tensor | None,
    seg_k: torch.Tensor | None,
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    spec = f"B Hq Sq D, B Hkv Sk D, B Hkv Sk D, {OPTIONAL}"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, bias=bias, slopes=slopes, seg_q=seg_q, seg_k=seg_k)
    check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def checked_mods(
    q: torch.Tensor,
    k: torch.Tensor,
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    seg_q: torch.Tensor | None,
    seg_k: torch.Tensor | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    p: float,
    seed: int,
    offset: int,
) -> Mods:
    """A call's mods. Raises ValueError: a window below 1, a softcap not above 0, p, seed or offset out of range, one of
    seg_q and seg_k without the other."""
    if (seg_q is None) != (seg_k is None):
        raise ValueError("seg_k: expected segments of both queries and keys, or of neither")
    if window is not None and window < 1:
        raise ValueError(f"window: expected None or at least 1 key, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: expected None or a number above 0, got {softcap}")
    reach = min(q.shape[2] + k.shape[2] if window is None else window, 2**30)
    factor = scale_or_default(scale, q.shape[-1])
    rule = _dropout.checked(p, seed, offset)
    return Mods(bias, slopes, seg_q, seg_k, bool(causal), reach, softcap or 0.0, factor, rule)
