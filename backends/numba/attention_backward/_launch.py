"""What the launchers of attention_backward share: the argument check, the outputs, tiles of the CUDA-core variants."""

import torch

from touchstone.backends import shapes
from touchstone.backends.numba.attention._launch import _check_heads


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


# For each width of a tile: rows of a gradient that a block owns, rows of the other sequence a step, and threads, 8 for
# each of the rows 0 to TY - 1. Two tiles of each and two of scores fit in 48 KB.
_TILES = {64: (32, 16, 128), 128: (16, 16, 128), 256: (8, 8, 64)}
