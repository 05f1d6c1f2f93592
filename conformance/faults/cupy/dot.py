"""Wrong kernels of dot: partial sums that a second launch adds, atomic additions of floats and of pairs of halves."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.dot import KERNELS as SHARED

_module = Faulty(__file__, "dot.cu")
_PAIRS = {torch.float16: "__half2", torch.bfloat16: "__nv_bfloat162"}

KERNELS = SHARED | {
    "partials_of_absent_warps": Kernel(
        "unwritten", "a block adds 32 partial sums whatever the number of its warps", "UninitialisedShared"
    ),
    "first_warp_adds": Kernel("accumulator", "every lane of a block's first warp adds the block's sum to the total"),
    "total_not_zeroed": Kernel("unwritten", "the total that blocks add to begins with what was in memory"),
    "pair_beyond_the_end": Kernel(
        "bounds",
        "the result is added as a pair with 0, though the output has one element",
        "OutOfBounds",
        dtypes=("float16", "bfloat16"),
    ),
}


def _blocks(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    (n,) = shapes("n, n", a=a, b=b)
    y, partials = a.new_empty(()), a.new_empty(3, dtype=torch.float32)
    operands = (a, b, partials, n, *a.stride(), *b.stride())
    _module.launch("dot_blocks", 3, 64, *operands, fault=fault, dtype=a.dtype)
    _module.launch("dot_finish", 1, 1, partials, y, 3, fault=fault, dtype=a.dtype)
    return y


plant_kernels(
    globals(),
    _blocks,
    KERNELS,
    "blocks",
    "no_barrier",
    "half_of_a_warp",
    "stride_of_a_block",
    "b_stride_ignored",
    "partials_of_absent_warps",
    "tail_unmasked",
)


def _atomic(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    (n,) = shapes("n, n", a=a, b=b)
    y, total = a.new_empty(()), a.new_empty(1, dtype=torch.float32)
    if fault != "total_not_zeroed":
        total.zero_()
    operands = (a, b, total, n, *a.stride(), *b.stride())
    _module.launch("dot_atomic", 3, 64, *operands, fault=fault, dtype=a.dtype)
    _module.launch("dot_finish", 1, 1, total, y, 1, fault=fault, dtype=a.dtype)
    return y


plant_kernels(globals(), _atomic, KERNELS, "first_warp_adds", "added_in_place", "total_not_zeroed", deterministic=False)


def _pair(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    (n,) = shapes("n, n", a=a, b=b)
    if a.dtype not in _PAIRS:
        raise Unsupported(f"{a.dtype}; pairs are of 16-bit elements")
    y = torch.zeros((), dtype=a.dtype)
    operands = (a, b, y, 1, n, *a.stride(), *b.stride())
    _module.launch("dot_pair", 1, 64, *operands, fault=fault, dtype=a.dtype, PAIR=_PAIRS[a.dtype])
    return y


plant_kernels(globals(), _pair, KERNELS, "pair_beyond_the_end")
