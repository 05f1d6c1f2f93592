"""Wrong kernels of rms_norm: a row in dynamic shared memory, and one warp per row in accesses of 16 bytes."""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.runtime.module import shared_limit
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.rms_norm import KERNELS as SHARED

_module = Faulty(__file__, "rms_norm.cu")

KERNELS = SHARED | {
    "shared": Kernel("known-good", "a few blocks walk over the rows and keep one in shared memory"),
    "no_barrier_before_rstd": Kernel(
        "race",
        "no barrier between the thread that writes the factor of a row to shared memory and those that read it",
        "UninitialisedShared",
    ),
    "no_barrier_before_partials": Kernel(
        "race", "no barrier between the warps' partial sums and the thread that adds them", "UninitialisedShared"
    ),
    "factor_of_an_earlier_row": Kernel(
        "cache", "a block keeps in shared memory the factor of its first row for the rows after it"
    ),
    "whole_steps": Kernel("tail", "the sum of squares leaves out columns beyond a multiple of the block"),
    "narrow_sum": Kernel(
        "precision", "a thread adds its squares in the 16-bit type of x", dtypes=("float16", "bfloat16")
    ),
    "shared_memory_of_elements": Kernel(
        "bounds",
        "the launch asks for shared memory for a row of 16-bit elements, but the kernel keeps floats",
        "OutOfBounds",
        dtypes=("float16", "bfloat16"),
    ),
    "partials_overrun": Kernel(
        "bounds", "eight warps write their partial sums to a shared array of four", "OutOfBounds"
    ),
    "vectorised": Kernel(
        "known-good", "one warp per row in loads of 16 bytes where rows are aligned, else one block per row"
    ),
    "pointer_unaligned": Kernel(
        "alignment",
        "loads of 16 bytes wherever rows are contiguous, also where x begins between multiples of 16",
        "Misaligned",
    ),
    "row_stride_unaligned": Kernel(
        "alignment",
        "loads of 16 bytes where the first row is aligned, though the row stride takes the next one off it",
        "Misaligned",
    ),
    "run_too_many": Kernel(
        "bounds", "the runs of 16 bytes are counted upwards: the last one reads past the row", "OutOfBounds"
    ),
    "tail_dropped": Kernel("tail", "columns after the last whole run of 16 bytes are not written"),
    "grid_rounded_down": Kernel("tail", "the grid counts whole blocks of four rows: the rows beyond are not written"),
}


def _shared(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    held = cols * (x.element_size() if fault == "shared_memory_of_elements" else 4)
    if held + 32 > shared_limit(x.device):
        raise Unsupported(f"{cols} columns; one block's shared memory holds {shared_limit(x.device) // 4 - 8}")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = min(32 * -(-cols // 32), 256 if fault == "partials_overrun" else 128)
        operands = (x, weight, y, rows, cols, *x.stride(), weight.stride(0), eps)
        _module.launch("rms_norm_shared", min(rows, 3), threads, *operands, fault=fault, dtype=x.dtype, shared=held)
    return y


plant_kernels(
    globals(),
    _shared,
    KERNELS,
    "shared",
    "no_barrier_before_rstd",
    "no_barrier_before_partials",
    "factor_of_an_earlier_row",
    "whole_steps",
    "narrow_sum",
    "weight_stride_ignored",
    "shared_memory_of_elements",
    "partials_overrun",
)


def _vectorised(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    length = 16 // x.element_size()
    aligned = x.stride(1) == 1
    if fault != "pointer_unaligned":
        aligned = aligned and x.data_ptr() % 16 == 0
    if fault != "row_stride_unaligned":
        aligned = aligned and (rows == 1 or x.stride(0) % length == 0)
    if not aligned and cols >= length:
        return _shared(x, weight, eps=eps)
    if y.numel():
        blocks = max(rows // 4, 1) if fault == "grid_rounded_down" else -(-rows // 4)
        operands = (x, weight, y, rows, cols, *x.stride(), weight.stride(0), eps)
        _module.launch("rms_norm_vectorised", blocks, (32, 4), *operands, fault=fault, dtype=x.dtype)
    return y


plant_kernels(
    globals(),
    _vectorised,
    KERNELS,
    "vectorised",
    "pointer_unaligned",
    "row_stride_unaligned",
    "run_too_many",
    "tail_dropped",
    "grid_rounded_down",
)
