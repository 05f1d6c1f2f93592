"""Wrong kernels of gemv: a warp to a row, and half a warp to a row."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.gemv import KERNELS as SHARED

_module = Faulty(__file__, "gemv.cu")

KERNELS = SHARED | {
    "offset_int": Kernel("offset", "row times row stride is a product of two ints, which wraps", "OutOfBounds"),
    "halves": Kernel("known-good", "half a warp to a row"),
    "second_row_of_the_first": Kernel("axis", "the second half of a warp reads the first one's row"),
}


def _rows(a: torch.Tensor, x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        operands = (a, x, y, M, K, *a.stride(), *x.stride())
        _module.launch("gemv_rows", -(-M // 2), (32, 2), *operands, fault=fault, dtype=a.dtype)
    return y


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "row_stride_of_k",
    "row_unguarded",
    "half_of_a_warp",
    "first_lane_sum_stored_by_all",
    "offset_int",
)


def _halves(a: torch.Tensor, x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M:
        operands = (a, x, y, M, K, *a.stride(), *x.stride())
        _module.launch("gemv_halves", -(-M // 2), 32, *operands, fault=fault, dtype=a.dtype)
    return y


plant_kernels(globals(), _halves, KERNELS, "halves", "second_row_of_the_first")
