"""The gradient of dropout_bitmask: dx = dy/(1 - p) where the element's bit is 1, else 0 [oneflow2022drop].

dy and dx of any one shape with n elements; bits (ceil(n/32),) int32 as the forward pass returned them. Bits beyond the
last element may be anything. ValueError: p outside [0, 1], another number of words.
"""

import numpy as np
import torch

from touchstone.reference import _philox


def dropout_bitmask_backward(dy: np.ndarray, bits: np.ndarray, *, p: float = 0.5) -> np.ndarray:
    """Any shape, (ceil(n/32),) -> like dy."""
    dy = np.asarray(dy, np.float64)
    _check(dy.size, len(bits), p)
    e = np.arange(dy.size)
    bit = np.asarray(bits).astype(np.int64)[e // 32] >> e % 32 & 1
    return np.where(bit.reshape(dy.shape) == 1, dy, 0.0) * _philox.scale(p)


def torch_dropout_bitmask_backward(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """Any shape, (ceil(n/32),) -> like dy."""
    _check(dy.numel(), len(bits), p)
    bit = bits.long()[:, None] >> torch.arange(32, device=dy.device) & 1
    keep = bit.reshape(-1)[: dy.numel()].reshape(dy.shape) == 1
    return torch.where(keep, dy * _philox.scale(p), torch.zeros((), dtype=dy.dtype, device=dy.device))


def by_word(dy: np.ndarray, bits: np.ndarray, *, p: float = 0.5) -> np.ndarray:
    """Word by word, the 32 characters of each from right to left."""
    dy = np.asarray(dy, np.float64)
    _check(dy.size, len(bits), p)
    flat, dx = dy.reshape(-1), np.zeros(dy.size)
    for w, word in enumerate(np.asarray(bits)):
        for b, digit in enumerate(reversed(f"{int(word) % 2**32:032b}")):
            if digit == "1" and 32 * w + b < dy.size:
                dx[32 * w + b] = flat[32 * w + b] * _philox.scale(p)
    return dx.reshape(dy.shape)


def _check(count: int, given: int, p: float) -> None:
    if given != -(-count // 32):
        raise ValueError(f"bits: {given} words for {count} elements; expected {-(-count // 32)}")
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability in [0, 1], got {p}")
