"""What the launchers of attention and of its backward share."""

import math

import numpy as np
import torch


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
