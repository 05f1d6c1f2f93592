"""What the launchers of attention and of its backward share."""

import math

import numpy as np
import torch

from touchstone.backends import shapes


def _sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    B, Hq, Sq, D, Hkv, Sk = shapes("B Hq Sq D, B Hkv Sk D, B Hkv Sk D", q=q, k=k, v=v)
    _check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def _check_heads(Hq: int, Hkv: int, D: int) -> None:
    if Hq % Hkv if Hkv else Hq:
        raise ValueError(f"q: {Hq} heads; expected a multiple of the {Hkv} heads of k and v")
    if not 1 <= D <= 256:
        raise ValueError(f"q: head dimension {D}; expected 1 to 256")


def _outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fresh o like q and lse (B, Hq, Sq) in float32, both contiguous."""
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return o, torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


def _scale(scale: float | None, D: int) -> np.float32:
    return np.float32(1 / math.sqrt(D) if scale is None else scale)


def _blocks(rows: int, size: int) -> int:
    return -(-rows // size)


def _width(D: int) -> int:
    """The head dimension padded to 64, 128 or 256, which is a constant of a kernel."""
    return max(64, 1 << (D - 1).bit_length())


def _strided(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operands with a first axis of stride 0: Numba types contiguous arrays apart, and then finds none."""
    return tuple(x.unsqueeze(0).expand(2, *x.shape) for x in operands)
