"""Codes of four bits, two to a byte, the even column's in the low nibble. A factor and a shift for each group of
columns make an element of a code: code·factor + shift."""

import numpy as np
import torch


def nibbles(codes: np.ndarray) -> np.ndarray:
    """(..., D/2) bytes -> (..., D) numbers from 0 to 15."""
    codes = np.asarray(codes).astype(np.int64)
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1])


def elements(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """(..., D/2) bytes and (..., G, 2) factors and shifts -> (..., D)."""
    wide, scales = nibbles(codes), np.asarray(scales, np.float64)
    own = np.repeat(scales, wide.shape[-1] // scales.shape[-2], axis=-2)
    return wide * own[..., 0] + own[..., 1]


def torch_nibbles(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(..., D/2) bytes -> (..., D) numbers from 0 to 15."""
    codes = codes.long()
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2).to(dtype)


def torch_elements(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(..., D/2) bytes and (..., G, 2) factors and shifts -> (..., D), in the dtype of `scales`."""
    wide = torch_nibbles(codes, scales.dtype)
    own = scales.repeat_interleave(wide.shape[-1] // scales.shape[-2], -2)
    return wide * own[..., 0] + own[..., 1]
