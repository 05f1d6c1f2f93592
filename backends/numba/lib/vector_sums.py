"""What sums over a vector of any length share: a grid that runs at once, and whether 16-byte accesses do."""

import torch

from touchstone.backends.devices import multiprocessors
from touchstone.backends.numba.lib.reductions import block_threads


def resident_blocks(x: torch.Tensor, each: int = 8) -> int:
    """Blocks that fill the device of `x` with `each` on a multiprocessor; a few in the emulator."""
    return multiprocessors(x.device) * each if x.is_cuda else 3


def grid_of(x: torch.Tensor, each: int, most: int = 256) -> tuple[int, int]:
    """Blocks that run at once, no more than there is work for, and the threads of each; `each` elements to a thread."""
    across = block_threads(-(-x.numel() // each), most)
    return max(1, min(resident_blocks(x), -(-x.numel() // (across * each)))), across


def whole_vectors(*operands: torch.Tensor) -> bool:
    """Whether accesses of 16 bytes do from the beginning of each vector, up to what is left at its end."""
    return all(x.stride(-1) == 1 and x.data_ptr() % 16 == 0 for x in operands)
