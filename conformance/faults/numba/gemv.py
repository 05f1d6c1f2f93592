"""Wrong kernels of gemv: a warp to a row, and several blocks to a row."""

from enum import IntEnum

import torch
from numba import cuda, float32, int32

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.gemv import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch

_ALL = 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    row_stride_of_k = 1
    row_unguarded = 2
    half_of_a_warp = 3
    first_lane_sum_stored_by_all = 4
    offset_int32 = 5
    empty_part_unwritten = 6
    parts_of_whole_columns = 7


@cuda.jit(device=True)
def _warp_sum(value, fault):
    """In the first lane."""
    step = 8 if fault == Fault.half_of_a_warp else 16
    while step > 0:
        value += cuda.shfl_down_sync(_ALL, value, step)
        step //= 2
    return value


@cuda.jit
def _rows_kernel(a, a_row, a_col, x, y, fault):
    # A block is 32 lanes by two rows.
    row = cuda.blockIdx.x * 2 + cuda.threadIdx.y
    if row >= y.shape[0] and fault != Fault.row_unguarded:
        return
    start = row * (x.shape[0] if fault == Fault.row_stride_of_k else a_row)
    if fault == Fault.offset_int32:
        start = int32(start)
    total = float32(0)
    for k in range(cuda.threadIdx.x, x.shape[0], 32):
        total += float32(a[start + k * a_col]) * float32(x[k])
    total = _warp_sum(total, fault)
    if cuda.threadIdx.x == 0 or fault == Fault.first_lane_sum_stored_by_all:
        y[row] = total


@cuda.jit
def _parts_kernel(a, x, partials, fault):
    # Block (row, part) of one warp leaves the sum of its columns in partials[part, row].
    parts, K = partials.shape[0], x.shape[0]
    each = K // parts if fault == Fault.parts_of_whole_columns else -(-K // parts)
    first = cuda.blockIdx.y * each
    if fault == Fault.empty_part_unwritten and first >= K:
        return
    total = float32(0)
    for k in range(first + cuda.threadIdx.x, min(first + each, K), 32):
        total += float32(a[cuda.blockIdx.x, k]) * float32(x[k])
    total = _warp_sum(total, fault)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.y, cuda.blockIdx.x] = total


@cuda.jit
def _finish_kernel(partials, y, fault):
    row = cuda.grid(1)
    if row < y.shape[0]:
        total = float32(0)
        for part in range(partials.shape[0]):
            total += partials[part, row]
        y[row] = total


KERNELS = SHARED | {
    "parts": Kernel("known-good", "three blocks to a row, whose sums another launch adds"),
    "empty_part_unwritten": Kernel(
        "unwritten", "a block without columns returns before it writes its partial sum, which is added all the same"
    ),
    "parts_of_whole_columns": Kernel("tail", "a row is cut into three parts of K // 3 columns"),
}


def _rows(a: torch.Tensor, x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, K = shapes("M K, K", a=a, x=x)
    y = a.new_empty(M)
    if M and not K:
        return y.zero_()
    if M:
        launch(Fault, fault, _rows_kernel, -(-M // 2), (32, 2), flat(a), *a.stride(), x, y)
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
    "offset_int32",
)


def _parts(a: torch.Tensor, x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    M, _ = shapes("M K, K", a=a, x=x)
    y, partials = a.new_empty(M), a.new_empty((3, M), dtype=torch.float32)
    if M:
        launch(Fault, fault, _parts_kernel, (M, 3), 32, a, x, partials)
        launch(Fault, fault, _finish_kernel, -(-M // 32), 32, partials, y)
    return y


plant_kernels(globals(), _parts, KERNELS, "parts", "empty_part_unwritten", "parts_of_whole_columns")
