"""mla: q_nope (B, H, Sq, Dn), q_rope (B, H, Sq, Dr), c (B, Sk, R), k_rope (B, Sk, Dr), w_uk (H, R, Dn), w_uv
(H, R, Dv); o (B, H, Sq, Dv), lse (B, H, Sq) in float32."""

import math

import torch

from touchstone.backends import shapes

LIMITS = {"Dn": 256, "Dr": 64, "R": 512, "Dv": 256}


def checked_sizes(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    c: torch.Tensor,
    k_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
) -> tuple[int, int, int, int, int, int, int, int]:
    """(B, H, Sq, Dn, Dr, Sk, R, Dv) of checked operands."""
    operands = dict(q_nope=q_nope, q_rope=q_rope, c=c, k_rope=k_rope, w_uk=w_uk, w_uv=w_uv)
    sizes = shapes("B H Sq Dn, B H Sq Dr, B Sk R, B Sk Dr, H R Dn, H R Dv", **operands)
    owners = {"Dn": "q_nope", "Dr": "q_rope", "R": "c", "Dv": "w_uv"}
    for name, size in zip(("Dn", "Dr", "R", "Dv"), (sizes[3], sizes[4], sizes[6], sizes[7]), strict=True):
        if not 1 <= size <= LIMITS[name]:
            raise ValueError(f"{owners[name]}: {name} = {size}; expected 1 to {LIMITS[name]}")
    return sizes  # type: ignore[return-value]


def empty_outputs(q_nope: torch.Tensor, Dv: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o (B, H, Sq, Dv) like q_nope and lse (B, H, Sq) in float32, both contiguous."""
    o = torch.empty((*q_nope.shape[:3], Dv), dtype=q_nope.dtype, device=q_nope.device)
    return o, torch.empty(q_nope.shape[:3], dtype=torch.float32, device=q_nope.device)


def scale_or_default(scale: float | None, Dn: int, Dr: int) -> float:
    """The factor of the scores: `scale`, or 1/sqrt(Dn + Dr) for None."""
    return 1 / math.sqrt(Dn + Dr) if scale is None else scale
