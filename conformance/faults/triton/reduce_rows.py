"""Wrong kernels of reduce_rows: a program to some outputs, for which it walks along the reduced axis."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.reduce_rows import checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.reduce_rows import KERNELS as SHARED


@triton.jit
def _kept(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _rows_kernel(
    x_ptr, y_ptr, outputs, each, x_output, x_step, NUMBER: tl.constexpr, FAULT: tl.constexpr, BLOCK: tl.constexpr
):
    """A minimum is that of the negatives, negated."""
    output = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = output < outputs
    if FAULT == "outputs_unguarded":
        inside = output >= 0
    if FAULT == "strides_swapped":
        offset, step = output * x_step, x_output
    else:
        offset, step = output * x_output, x_step
    neutral: tl.constexpr = 0.0 if NUMBER == 0 or FAULT == "padding_is_0" else float("-inf")
    acc = tl.full((BLOCK, BLOCK), neutral, tl.float32)
    for start in range(0, each, BLOCK):
        i = (start + tl.arange(0, BLOCK)).to(tl.int64)
        mask = inside[:, None] & (i[None, :] < each)
        x = tl.load(x_ptr + offset[:, None] + i[None, :] * step, mask=mask, other=0.0).to(tl.float32)
        if NUMBER == 2:
            x = -x
        x = tl.where(mask, x, neutral)
        if NUMBER == 0:
            if FAULT == "last_tile_only":
                acc = x
            else:
                acc += x
        else:
            acc = _kept(acc, x)
    if NUMBER == 0:
        y = tl.sum(acc, axis=1)
    else:
        y = tl.reduce(acc, 1, _kept)
    if NUMBER == 2:
        y = -y
    tl.store(y_ptr + output, y, mask=inside)


KERNELS = SHARED | {"last_tile_only": Kernel("accumulator", "of a sum the last tile is kept: `acc =` for `acc +=`")}


def _rows(x: torch.Tensor, *, axis: int = -1, function: str = "sum", fault: str = "none") -> torch.Tensor:
    seen, number = checked(x, axis, function)
    outputs, each = seen.shape
    y = x.new_empty(outputs)
    if outputs:
        grid = (triton.cdiv(outputs, 16),)
        _rows_kernel[grid](x, y, outputs, each, *seen.stride(), NUMBER=number, FAULT=fault, BLOCK=16)
    return y


plant_kernels(globals(), _rows, KERNELS, "padding_is_0", "outputs_unguarded", "strides_swapped", "last_tile_only")
