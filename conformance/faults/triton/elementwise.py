"""Wrong kernels of elementwise: blocks of 256 elements of two axes."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.elementwise import checked_output
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.elementwise import KERNELS as SHARED


@triton.jit
def _flat_kernel(
    a_ptr,
    b_ptr,
    y_ptr,
    a_row,
    a_col,
    b_row,
    b_col,
    size,
    cols,
    FUNCTION: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    if FAULT == "whole_blocks":
        inside = i < size // BLOCK * BLOCK
    if FAULT == "stride_of_b_ignored":
        b_row = a_row
        b_col = a_col
    a = tl.load(a_ptr + i // cols * a_row + i % cols * a_col, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + i // cols * b_row + i % cols * b_col, mask=inside, other=0.0).to(tl.float32)
    if FAULT == "through_bfloat16":
        b = b.to(tl.bfloat16).to(tl.float32)
    y = a + b
    if FUNCTION == "mul":
        y = a * b
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


KERNELS = SHARED | {
    "whole_blocks": Kernel("tail", "what exceeds a multiple of 256 elements is not written"),
    "through_bfloat16": Kernel("precision", "b passes through bfloat16", dtypes=("float32", "float16")),
}


def _flat(a: torch.Tensor, b: torch.Tensor, *, function: str = "add", fault: str = "none") -> torch.Tensor:
    y = checked_output(a, b, function)
    if a.ndim != 2:
        a, b = a.reshape(1, -1), b.reshape(1, -1)
    if y.numel():
        operands = (a, b, y, *a.stride(), *b.stride(), y.numel(), a.shape[1])
        _flat_kernel[(triton.cdiv(y.numel(), 256),)](*operands, FUNCTION=function, FAULT=fault, BLOCK=256)
    return y


plant_kernels(globals(), _flat, KERNELS, "whole_blocks", "stride_of_b_ignored", "through_bfloat16")
