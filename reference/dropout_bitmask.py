"""Dropout that also returns which elements it kept, one bit each, for the backward pass [oneflow2022drop].

x and y of any one shape with n elements; bits (ceil(n/32),) int32: bit b of word w stands for element 32w + b, counted
row by row, and is 1 where it is kept. Bits beyond the last element are 0. Else as `dropout`.
"""

import numpy as np
import torch

from touchstone.reference import _philox
from touchstone.reference.dropout import dropout, torch_dropout


def dropout_bitmask(x: np.ndarray, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Any shape -> the same, (ceil(n/32),) int32."""
    keep = _philox.kept(np.shape(x), p, seed, offset).reshape(-1)
    padded = np.zeros(-(-keep.size // 32) * 32, np.uint32)
    padded[: keep.size] = keep
    bits = (padded.reshape(-1, 32) << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    return dropout(x, p=p, seed=seed, offset=offset), bits.view(np.int32)


def torch_dropout_bitmask(
    x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Any shape -> the same, (ceil(n/32),) int32."""
    keep = _philox.torch_kept(x.shape, p, seed, offset, x.device).reshape(-1)
    padded = torch.nn.functional.pad(keep.long(), (0, -keep.numel() % 32)).reshape(-1, 32)
    bits = (padded << torch.arange(32, device=x.device)).sum(1).to(torch.int32)  # bit 31 is the sign
    return torch_dropout(x, p=p, seed=seed, offset=offset), bits


def by_packing_bytes(x: np.ndarray, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The mask from y of ones, eight bits to a byte, low ones first, and four bytes to a word."""
    ones = dropout(np.ones(np.shape(x)), p=p, seed=seed, offset=offset)
    packed = np.packbits(ones.reshape(-1) != 0, bitorder="little")
    packed = np.concatenate([packed, np.zeros(-packed.size % 4, np.uint8)])
    y = np.where(ones != 0, np.asarray(x, np.float64), 0.0) * ones
    return y, packed.view("<i4").astype(np.int32)
