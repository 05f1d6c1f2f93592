"""Wrong kernels of softmax: block reductions by shuffles, by halves of a buffer, and by atomics on shared memory."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.softmax import KERNELS as SHARED

_module = Faulty(__file__, "softmax.cu")

KERNELS = SHARED | {
    "fill_zero": Kernel("mask", "the maximum starts at 0 instead of -inf"),
    "block_of_all_columns": Kernel(
        "shapes", "the block has a thread for each column, more than 1024 for long rows: the launch fails", "ValueError"
    ),
    "offset_int": Kernel("offset", "row times row stride is a product of two ints, which wraps", "OutOfBounds"),
    "maximum_of_a_warp": Kernel("overflow", "each warp subtracts the maximum of its own columns"),
    "halves": Kernel("known-good", "a block reduces a buffer in shared memory by halves"),
    "warp_synchronous": Kernel("race", "the last halves are added within a warp without __syncwarp", "RaceCondition"),
    "store_unguarded": Kernel(
        "bounds",
        "every thread stores in every step: a row writes past its last column, the last row past the output",
        "OutOfBounds",
    ),
    "stale_sum": Kernel("accumulator", "the sum in shared memory is not set to 0 for a block's next row"),
}


def _rows(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = 32 * -(-cols // 32)
        if fault == "ragged_warp":
            threads = min(cols, 255)
        elif fault != "block_of_all_columns":
            threads = min(threads, 256)
        blocks = min(rows, 4)
        _module.launch("softmax_rows", blocks, threads, x, y, rows, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "fill_zero",
    "no_barrier_in_reduction",
    "reduction_buffer_reused",
    "partials_of_absent_warps",
    "block_of_all_columns",
    "ragged_warp",
    "offset_int",
    "maximum_of_a_warp",
    "column_stride_ignored",
)


def _halves(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = next(threads for threads in (32, 64, 128, 256) if cols <= threads or threads == 256)
        if fault == "block_no_power_of_two":
            threads = 96
        _module.launch("softmax_halves", rows, threads, x, y, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


plant_kernels(globals(), _halves, KERNELS, "halves", "warp_synchronous", "block_no_power_of_two", "store_unguarded")


def _shared(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        blocks = min(rows, 2)
        _module.launch("softmax_shared", blocks, 64, x, y, rows, cols, *x.stride(), fault=fault, dtype=x.dtype)
    return y


plant_kernels(globals(), _shared, KERNELS, "stale_sum", deterministic=False)
