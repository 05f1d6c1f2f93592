"""What the launchers of attention and of its backward share."""

import numpy as np
import torch

from touchstone.backends.signatures.attention import scale_or_default


def score_factor(scale: float | None, D: int) -> np.float32:
    """`scale`, or 1/sqrt(D) for None, as a kernel takes it."""
    return np.float32(scale_or_default(scale, D))


def padded_width(D: int) -> int:
    """The head dimension padded to 64, 128 or 256, which is a constant of a kernel."""
    return max(64, 1 << (D - 1).bit_length())


def strided(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The operands with a first axis of stride 0: Numba types contiguous arrays apart, and then finds none."""
    return tuple(x.unsqueeze(0).expand(2, *x.shape) for x in operands)
