"""Wrong kernels of activation: a few blocks step through the elements, which lie where the strides say."""

from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.backends.numba.lib.activations import activate, number
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.activation import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    step_of_all_but_one = 1
    bias_stride_ignored = 2
    sum_float16 = 3
    last_element_left = 4
    rows_for_cols = 5


@cuda.jit
def _stepping_kernel(x, x_row, x_col, bias, b_col, has_bias, y, activation, fault):
    rows, cols = y.shape
    step = cuda.gridsize(1)
    if fault == Fault.step_of_all_but_one:
        step += cuda.blockDim.x
    i = cuda.grid(1)
    last = rows * cols - (1 if fault == Fault.last_element_left else 0)
    if fault == Fault.bias_stride_ignored:
        b_col = 1
    while i < last:
        row, col = i // cols, i % cols
        if fault == Fault.rows_for_cols:
            row, col = i % rows, i // rows
        value = float32(x[row * x_row + col * x_col])
        if has_bias:
            value += float32(bias[col * b_col])
        if fault == Fault.sum_float16:
            value = float32(float16(value))
        y[i // cols, i % cols] = activate(value, activation)
        i += step


KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements"),
    "step_of_all_but_one": Kernel(
        "tail", "each step is a block longer than the grid: what lies between is not written"
    ),
    "sum_float16": Kernel("precision", "x + bias passes through float16", dtypes=("float32", "bfloat16")),
    "last_element_left": Kernel("tail", "the last element is never written"),
    "rows_for_cols": Kernel("axis", "x is read down its columns and y written along its rows"),
}


def _stepping(
    x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu", fault: str = "none"
) -> torch.Tensor:
    rows, cols = shapes("rows cols, cols?", x=x, bias=bias)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        vector, stride = (y[0], 0) if bias is None else (flat(bias), bias.stride(0))
        blocks = -(-y.numel() // 512)
        operands = (flat(x), *x.stride(), vector, stride, bias is not None, y, np.int32(number(activation)))
        launch(Fault, fault, _stepping_kernel, blocks, 128, *operands)
    return y


plant_kernels(
    globals(),
    _stepping,
    KERNELS,
    "stepping",
    "step_of_all_but_one",
    "bias_stride_ignored",
    "sum_float16",
    "last_element_left",
    "rows_for_cols",
)
