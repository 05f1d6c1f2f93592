"""What the launchers of attention and of its backward share."""

import math

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


def _scale(scale: float | None, D: int) -> float:
    return 1 / math.sqrt(D) if scale is None else scale


def _blocks(rows: int, size: int) -> int:
    return -(-rows // size)


def _block_d(D: int) -> int:
    """The head dimension padded to whole tiles: a multiple of 64."""
    return _blocks(D, 64) * 64


def _aligned(*operands: torch.Tensor) -> bool:
    """Whether every head row of every operand is whole 16-byte pieces, one after another and on 16 bytes."""
    return all(
        x.stride(3) == 1
        and x.shape[3] * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        and all(n == 1 or s * x.element_size() % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in operands
    )
