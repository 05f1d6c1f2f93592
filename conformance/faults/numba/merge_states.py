"""Wrong kernels of merge_states: a block for each row, whose threads lie along D and go through the parts."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.merge_states import KERNELS
from touchstone.conformance.faults.numba._launching import flat, launch

_LOW, _TWO = np.float32(-math.inf), np.float32(math.log(2))


class Fault(IntEnum):
    none = 0
    not_rescaled = 1
    base_2 = 2
    last_part_lost = 3
    row_before = 4
    empty_parts = 5
    offset_int32 = 6
    part_stride = 7


@cuda.jit
def _running_kernel(o, steps, lse, merged, of_all, fault):
    row, rows, dim = cuda.blockIdx.x, merged.shape[0], merged.shape[1]
    parts = lse.shape[0] - 1 if fault == Fault.last_part_lost else lse.shape[0]
    source = max(row - 1, 0) if fault == Fault.row_before else row
    part_step = rows * steps[1] if fault == Fault.part_stride else steps[0]
    base = _TWO if fault == Fault.base_2 else float32(1)
    d = cuda.threadIdx.x
    while d < dim or d == 0:
        m, l, total = _LOW, float32(0), float32(0)
        for part in range(parts):
            start = part * part_step
            if fault == Fault.offset_int32:
                start = int32(start)
            own = lse[part, source]
            larger = max(m, own)
            shift = float32(0) if larger == _LOW and fault != Fault.empty_parts else larger
            kept, weight = math.exp((m - shift) * base), math.exp((own - shift) * base)
            l = l * kept + weight
            if fault != Fault.not_rescaled:
                total *= kept
            if d < dim:
                total += weight * float32(o[start + row * steps[1] + d * steps[2]])
            m = larger
        if d < dim:
            merged[row, d] = float32(0) if l == float32(0) else total / l
        if d == 0:
            of_all[row] = _LOW if l == float32(0) else m + math.log(l)
        d += cuda.blockDim.x


def _running(o, lse, *, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    _, rows, D = shapes("P rows D, P rows:float32", o=o, lse=lse)
    merged, of_all = torch.empty((rows, D), dtype=o.dtype), torch.empty(rows, dtype=torch.float32)
    if rows:
        arguments = (flat(o) if o.numel() else o.reshape(-1), torch.tensor(o.stride()), lse, merged, of_all)
        launch(Fault, fault, _running_kernel, rows, 64, *arguments)
    return merged, of_all


plant_kernels(
    globals(),
    _running,
    KERNELS,
    "running",
    "not_rescaled",
    "base_2",
    "last_part_lost",
    "row_before",
    "empty_parts",
    "offset_int32",
    "part_stride",
)
