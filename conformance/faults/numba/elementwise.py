"""Wrong kernels of elementwise: a few blocks step through the elements of two axes."""

from enum import IntEnum

import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends.numba import elementwise as right
from touchstone.backends.signatures.elementwise import checked_output
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.elementwise import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    stride_of_b_ignored = 1
    step_too_long = 2
    through_float16 = 3


@cuda.jit
def _stepping_kernel(a, a_row, a_col, b, b_row, b_col, y, product, fault):
    rows, cols = y.shape
    i, step = cuda.grid(1), cuda.gridsize(1)
    if fault == Fault.stride_of_b_ignored:
        b_row, b_col = a_row, a_col
    if fault == Fault.step_too_long:
        step += cuda.blockDim.x
    while i < rows * cols:
        row, col = i // cols, i % cols
        left, right = float32(a[row * a_row + col * a_col]), float32(b[row * b_row + col * b_col])
        if fault == Fault.through_float16:
            right = float32(float16(right))
        y[row, col] = left * right if product else left + right
        i += step


KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements of two axes"),
    "through_float16": Kernel("precision", "b passes through float16", dtypes=("float32", "bfloat16")),
}


def _stepping(a: torch.Tensor, b: torch.Tensor, *, function: str = "add", fault: str = "none") -> torch.Tensor:
    y = checked_output(a, b, function)
    if a.ndim != 2:
        return right.naive(a, b, function=function)
    if y.numel():
        operands = (flat(a), *a.stride(), flat(b), *b.stride(), y, function == "mul")
        launch(Fault, fault, _stepping_kernel, -(-y.numel() // 512), 128, *operands)
    return y


plant_kernels(globals(), _stepping, KERNELS, "stepping", "stride_of_b_ignored", "step_too_long", "through_float16")
