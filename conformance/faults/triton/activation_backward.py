"""Wrong kernels of activation_backward: a program has all rows of 64 columns."""

import torch
import triton
import triton.language as tl

from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs
from touchstone.backends.triton.lib.activations import activate, activation_slope
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.activation_backward import KERNELS as SHARED


@triton.jit
def _columns_kernel(
    x_ptr,
    bias_ptr,
    dy_ptr,
    dx_ptr,
    dbias_ptr,
    x_row,
    x_col,
    b_col,
    dy_row,
    dy_col,
    rows,
    cols,
    ACTIVATION: tl.constexpr,
    FAULT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    bias = tl.zeros((BLOCK,), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + col * b_col, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    summed = rows
    if FAULT == "last_rows_left_out":
        summed = rows // 4 * 4
    for row in range(0, rows):
        z = tl.load(x_ptr + col * x_col, mask=inside, other=0.0).to(tl.float32) + bias
        dy = tl.load(dy_ptr + col * dy_col, mask=inside, other=0.0).to(tl.float32)
        if FAULT == "slope_at_the_activated":
            z = activate(z, ACTIVATION)
        dx = dy * activation_slope(z, ACTIVATION)
        tl.store(dx_ptr + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        if FAULT == "sums_of_the_last_row":
            total = dx
        else:
            total += tl.where(row < summed, dx, 0.0)
        if FAULT == "sum_in_the_dtype":
            total = total.to(dx_ptr.dtype.element_ty).to(tl.float32)
        x_ptr += x_row
        dy_ptr += dy_row
        dx_ptr += cols
    if dbias_ptr is not None:
        tl.store(dbias_ptr + col, total.to(dbias_ptr.dtype.element_ty), mask=inside)


KERNELS = SHARED | {
    "slope_at_the_activated": Kernel("formula", "act' is taken at act(x + bias)"),
    "sum_in_the_dtype": Kernel("precision", "dbias is added up in the dtype of x", dtypes=("float16", "bfloat16")),
}


def _columns(
    x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu", fault: str = "none"
) -> Gradients:
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        strides = (*x.stride(), 0 if bias is None else bias.stride(0), *dy.stride())
        operands = (x, bias, dy, dx, dbias, *strides, *x.shape)
        grid = (triton.cdiv(x.shape[1], 64),)
        _columns_kernel[grid](*operands, ACTIVATION=activation, FAULT=fault, BLOCK=64)
    return dx, dbias


plant_kernels(
    globals(),
    _columns,
    KERNELS,
    "last_rows_left_out",
    "sums_of_the_last_row",
    "slope_at_the_activated",
    "sum_in_the_dtype",
)
