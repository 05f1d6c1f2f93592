"""Wrong kernels of reduce: a tree in shared memory, and blocks that combine into one number by atomics."""

import torch

from touchstone.backends.signatures.reduce import checked, neutral_key
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.reduce import KERNELS as SHARED

_module = Faulty(__file__, "reduce.cu")

KERNELS = SHARED | {
    "first_load_twice": Kernel("accumulator", "a thread combines its first element with itself, not with the second"),
    "total_not_zeroed": Kernel("unwritten", "the total of a sum is not zeroed before blocks add to it"),
    "half_shuffle_mask": Kernel("race", "the shuffles name the first 16 lanes, and all 32 take part", "InactiveLanes"),
}


def _tree(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    number, n = checked(x, function), x.numel()
    blocks = max(1, n // 256 if fault == "last_block_lost" else -(-n // 256))
    y, results = x.new_empty(()), x.new_empty(blocks, dtype=torch.float32)
    _module.launch("reduce_tree", blocks, 128, x, results, n, *x.stride(), number, fault=fault, dtype=x.dtype)
    _module.launch("reduce_finish", 1, 1, results, y, blocks, number, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _tree,
    KERNELS,
    "tree",
    "no_barrier",
    "last_warp_without_barrier",
    "padding_is_0",
    "nan_dropped",
    "first_load_twice",
    "last_block_lost",
)


def _atomic(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    number, n = checked(x, function), x.numel()
    y, total = x.new_empty(()), x.new_empty(1, dtype=torch.int32)
    if fault != "total_not_zeroed" or number:
        total.fill_(neutral_key(number))
    _module.launch("reduce_atomic", 3, 32, x, total, n, *x.stride(), number, fault=fault, dtype=x.dtype)
    _module.launch("reduce_of_total", 1, 1, total, y, number, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(), _atomic, KERNELS, "added_in_place", "total_not_zeroed", "half_shuffle_mask", deterministic=False
)
