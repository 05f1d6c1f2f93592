"""attention: q (B, Hq, Sq, D), k and v (B, Hkv, Sk, D); o like q, lse (B, Hq, Sq) in float32."""

import math

import torch

from touchstone.backends import shapes


def checked_sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def check_heads(Hq: int, Hkv: int, D: int) -> None:
    """Raise ValueError unless the heads of q are a multiple of those of k and v, and D is at most 256."""
    if Hq % Hkv if Hkv else Hq:
        raise ValueError(f"q: {Hq} heads; expected a multiple of the {Hkv} heads of k and v")
    if not 1 <= D <= 256:
        raise ValueError(f"q: head dimension {D}; expected 1 to 256")


def empty_outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o like q and lse (B, Hq, Sq) in float32, both contiguous."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return o, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def scale_or_default(scale: float | None, D: int) -> float:
    """The factor of the scores: `scale`, or 1/sqrt(D) for None."""
    return 1 / math.sqrt(D) if scale is None else scale
