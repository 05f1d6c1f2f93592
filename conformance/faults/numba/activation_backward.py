"""Wrong kernels of activation_backward: a thread has all rows of a column."""

from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends.numba.lib.activations import number, slope
from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.activation_backward import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    last_rows_left_out = 1
    sums_of_the_last_row = 2
    sum_float16 = 3
    bias_stride_ignored = 4


@cuda.jit
def _columns_kernel(x, x_row, x_col, bias, b_col, has_bias, dy, dy_row, dy_col, dx, dbias, activation, fault):
    rows, cols = dx.shape
    col = cuda.grid(1)
    if col >= cols:
        return
    if fault == Fault.bias_stride_ignored:
        b_col = 1
    total = float32(0)
    for row in range(rows):
        z = float32(x[row * x_row + col * x_col])
        if has_bias:
            z += float32(bias[col * b_col])
        gradient = float32(dy[row * dy_row + col * dy_col]) * slope(z, activation)
        dx[row, col] = gradient
        if fault == Fault.sums_of_the_last_row:
            total = float32(0)
        if fault != Fault.last_rows_left_out or row < rows // 4 * 4:
            total += gradient
        if fault == Fault.sum_float16:
            total = float32(float16(total))
    if has_bias:
        dbias[col] = total


KERNELS = SHARED | {
    "columns": Kernel("known-good", "a thread has all rows of a column"),
    "sum_float16": Kernel("precision", "dbias is added up in float16"),
    "bias_stride_ignored": Kernel("strides", "the stride of bias is taken to be 1", "OutOfBounds|values: "),
}


def _columns(
    x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu", fault: str = "none"
) -> Gradients:
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        vector, stride = (dx[0], 0) if bias is None else (flat(bias), bias.stride(0))
        operands = (flat(x), *x.stride(), vector, stride, bias is not None, flat(dy), *dy.stride(), dx)
        sums = dx[0] if dbias is None else dbias
        blocks = -(-x.shape[1] // 128)
        launch(Fault, fault, _columns_kernel, blocks, 128, *operands, sums, np.int32(number(activation)))
    return dx, dbias


plant_kernels(
    globals(),
    _columns,
    KERNELS,
    "columns",
    "last_rows_left_out",
    "sums_of_the_last_row",
    "sum_float16",
    "bias_stride_ignored",
)
