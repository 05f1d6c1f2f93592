"""Backward of rope: the gradients of q and k from dq (B, Hq, S, D) and dk (B, Hkv, S, D), those of what rope returned.

A rotation's transpose is the rotation back: dx1 = dy1·c + dy2·s and dx2 = dy2·c − dy1·s. Operands as of rope
[suetal2021].
"""

import numpy as np
import torch

from touchstone.reference.rope import matrices, rope, torch_rope


def rope_backward(
    dq: np.ndarray,
    dk: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    positions: np.ndarray | None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """-> like dq and like dk."""
    return rope(dq, dk, cos, -np.asarray(sin, np.float64), positions, interleaved=interleaved)


def torch_rope_backward(
    dq: torch.Tensor,
    dk: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    *,
    interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> like dq and like dk."""
    return torch_rope(dq, dk, cos, -sin, positions, interleaved=interleaved)


def transposed_matrices(
    dq: np.ndarray,
    dk: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    positions: np.ndarray | None,
    *,
    interleaved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Through the matrix of each token, which the forward gives of the unit vectors, transposed."""
    batch, _, tokens, dim = dq.shape
    units = np.broadcast_to(np.eye(dim)[None, :, None], (batch, dim, tokens, dim))
    columns, _ = matrices(units, units[:, :0], cos, sin, positions, interleaved=interleaved)  # [b, j, s, i]
    answers = (np.einsum("bjsi,bhsi->bhsj", columns, np.asarray(x, np.float64)) for x in (dq, dk))
    return next(answers), next(answers)
