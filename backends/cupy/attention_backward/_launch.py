"""What the launchers of attention_backward share: the argument check, the outputs, tiles of the CUDA-core variants."""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.attention._launch import _check_heads


def _sizes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, do: torch.Tensor
) -> tuple[int, int, int, int, int, int]:
    """(B, Hq, Sq, D, Hkv, Sk) of checked operands."""
    spec = "B Hq Sq D, B Hkv Sk D, B Hkv Sk D, B Hq Sq D, B Hq Sq:float32, B Hq Sq D"
    B, Hq, Sq, D, Hkv, Sk = shapes(spec, q=q, k=k, v=v, o=o, lse=lse, do=do)
    _check_heads(Hq, Hkv, D)
    return B, Hq, Sq, D, Hkv, Sk


def _outputs(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fresh dq, dk, dv, contiguous."""
    dq, dk, dv = (torch.empty(x.shape, dtype=q.dtype, device=q.device) for x in (q, k, k))
    return dq, dk, dv


_STEP = 16


def _own(block_d: int) -> int:
    """Rows of a gradient that a block of 128 threads owns: what fits in 99 KB of shared memory with its partners."""
    return 32 if block_d <= 128 else 16


def _shared(block_d: int) -> int:
    """Bytes of two tiles of own rows and two of the other sequence's, and of two tiles of scores."""
    own = _own(block_d)
    return 4 * (2 * (own + _STEP) * (block_d + 4) + 2 * own * (_STEP + 1))
