"""Wrong kernels of activation: blocks of 256 elements, wherever rows end."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.backends.triton.lib.activations import activate
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _flat_kernel(
    x_ptr,
    bias_ptr,
    y_ptr,
    x_row,
    x_col,
    b_col,
    size,
    cols,
    ACTIVATION: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    if FAULT == "whole_blocks":
        inside = i < size // BLOCK * BLOCK
    at = x_ptr + i // cols * x_row + i % cols * x_col
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        col = i % cols
        if FAULT == "bias_from_the_block":
            col = tl.arange(0, BLOCK) % cols
        x += tl.load(bias_ptr + col * b_col, mask=inside, other=0.0).to(tl.float32)
    if FAULT == "sum_in_bfloat16":
        x = x.to(tl.bfloat16).to(tl.float32)
    if FAULT == "sum_stored_over_x":
        tl.store(at, x.to(x_ptr.dtype.element_ty), mask=inside)
    y = activate(x, ACTIVATION)
    if FAULT == "zeros_kept_out":
        inside = inside & (y != 0.0)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=inside)


KERNELS = {
    "whole_blocks": Kernel("tail", "what exceeds a multiple of 256 elements is not written"),
    "bias_from_the_block": Kernel("weights", "each block of elements begins with the first element of bias"),
    "sum_in_bfloat16": Kernel("precision", "x + bias passes through bfloat16", dtypes=("float32", "float16")),
    "sum_stored_over_x": Kernel("mutation", "x + bias is also stored over x", "inputs: x was written"),
    "zeros_kept_out": Kernel("unwritten", "results that are 0 are not stored: y is taken to hold 0 already"),
}


def _flat(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu", fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        stride = 0 if bias is None else bias.stride(0)
        grid = (triton.cdiv(y.numel(), 256),)
        sizes = (y.numel(), cols)
        _flat_kernel[grid](x, bias, y, *x.stride(), stride, *sizes, ACTIVATION=activation, FAULT=fault, BLOCK=256)
    return y


plant_kernels(
    globals(),
    _flat,
    KERNELS,
    "whole_blocks",
    "bias_from_the_block",
    "sum_in_bfloat16",
    "sum_stored_over_x",
    "zeros_kept_out",
)
