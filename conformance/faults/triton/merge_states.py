"""Wrong kernels of merge_states: a program for each row, which goes through the parts with a running maximum and
sum."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.merge_states import KERNELS as SHARED


@triton.jit
def _running_kernel(
    o_ptr, lse_ptr, merged_ptr, of_all_ptr, o_strides, lse_strides, parts, rows, D, FAULT: tl.constexpr,
    WIDTH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    source = row
    if FAULT == "row_before":
        source = tl.maximum(row - 1, 0)
    d = tl.arange(0, WIDTH).to(tl.int64)
    m, l, merged = float("-inf"), 0.0, tl.zeros((WIDTH,), tl.float32)
    o_part = o_strides[0]
    if FAULT == "part_stride":
        o_part = rows * o_strides[1]
    if FAULT == "last_part_lost":
        parts = parts - 1
    for part in range(0, parts):
        if FAULT == "offset_int32":
            start = part * o_part.to(tl.int32)
        else:
            start = tl.cast(part, tl.int64) * o_part
        of_part = tl.load(lse_ptr + tl.cast(part, tl.int64) * lse_strides[0] + source * lse_strides[1])
        inside = d < D
        if FAULT == "columns_unmasked":
            inside = d < WIDTH
        o = tl.load(o_ptr + start + row * o_strides[1] + d * o_strides[2], mask=inside, other=0.0).to(tl.float32)
        larger = tl.maximum(m, of_part)
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        if FAULT == "empty_parts":
            shift = larger
        kept, weight = tl.exp(m - shift), tl.exp(of_part - shift)
        if FAULT == "base_2":
            kept, weight = tl.exp2(m - shift), tl.exp2(of_part - shift)
        l = l * kept + weight
        if FAULT == "not_rescaled":
            merged = merged + o * weight
        else:
            merged = merged * kept + o * weight
        m = larger
    tl.store(merged_ptr + row * D + d, merged / tl.where(l == 0, 1.0, l), mask=d < D)
    tl.store(of_all_ptr + row, tl.where(l == 0, float("-inf"), m + tl.log(l)))


KERNELS = SHARED | {
    "offset_int32": Kernel(
        "offset", "part times the stride of parts is a product of 32 bits", "IntegerOverflowError|OutOfBounds"
    ),
    "columns_unmasked": Kernel("bounds", "columns are read as far as the next power of two", "OutOfBounds"),
}


def _running(o, lse, *, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    parts, rows, D = shapes("P rows D, P rows:float32", o=o, lse=lse)
    merged, of_all = torch.empty((rows, D), dtype=o.dtype), torch.empty(rows, dtype=torch.float32)
    if rows:
        operands, width = (o, lse, merged, of_all, o.stride(), lse.stride()), triton.next_power_of_2(max(D, 1))
        _running_kernel[(rows,)](*operands, parts, rows, D, FAULT=fault, WIDTH=width)
    return merged, of_all


plant_kernels(
    globals(),
    _running,
    KERNELS,
    "not_rescaled",
    "base_2",
    "last_part_lost",
    "row_before",
    "empty_parts",
    "offset_int32",
    "part_stride",
    "columns_unmasked",
)
