"""What the launchers of row-wise kernels share: warps for a block of columns, programs that run at once."""

import torch

from backends.triton.gemm import processors


def warps(block: int, each: int = 512) -> int:
    """Warps for a block of columns, `each` to a warp; 512 columns of 16 bits are two 16-byte loads a lane."""
    return min(max(block // each, 1), 32)


def resident(x: torch.Tensor, each: int) -> int:
    """Programs of a grid that fills the device of `x` with `each` on a multiprocessor; a few in the interpreter."""
    return processors(x.device) * each if x.is_cuda else 3
