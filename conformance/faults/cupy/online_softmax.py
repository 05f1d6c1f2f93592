"""Wrong kernels of online_softmax: a few blocks walk over the rows and merge (m, l) pairs by shuffles."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.online_softmax import KERNELS as SHARED

_module = Faulty(__file__, "online_softmax.cu")

KERNELS = SHARED | {
    "sum_not_rescaled": Kernel("rescale", "the running sum is not rescaled when the maximum grows"),
    "lse_of_each_warp": Kernel("race", "every warp writes the lse of its own columns to the same place"),
    "warps_overrun": Kernel(
        "bounds", "eight warps write their maxima and sums to shared arrays of four", "OutOfBounds"
    ),
}


def _block(x: torch.Tensor, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.empty((rows,), dtype=torch.float32, device=x.device)
    if rows:
        threads = min(32 * -(-max(cols, 1) // 32), 256 if fault == "warps_overrun" else 128)
        operands = (x, y, lse, rows, cols, *x.stride())
        _module.launch("online_softmax_block", min(rows, 4), threads, *operands, fault=fault, dtype=x.dtype)
    return y, lse


plant_kernels(
    globals(),
    _block,
    KERNELS,
    "block",
    "sum_not_rescaled",
    "merge_not_rescaled",
    "maximum_from_zero",
    "infinite_shift",
    "lanes_left_out",
    "no_barrier_before_result",
    "lse_of_each_warp",
    "warps_overrun",
)
