"""Wrong kernels of rms_norm: one block per row, whose threads add to one sum in shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.numba._launching import flat, launch
from touchstone.conformance.faults.rms_norm import KERNELS as SHARED


class Fault(IntEnum):
    none = 0
    sum_not_zeroed = 1
    no_barrier_after_zero = 2
    sum_without_atomic = 3
    sum_float16 = 4
    eps_outside_the_root = 5
    eps_in_the_sum = 6
    count_of_steps = 7
    no_barrier_before_factor = 8
    count_float16 = 9
    negative_column = 10
    tail_unguarded = 11
    weight_stride_ignored = 12
    barrier_in_loop = 13


@cuda.jit
def _summed_kernel(x, x_row, x_col, weight, w_col, y, eps, fault):
    square = cuda.shared.array(1, float32)
    factor = cuda.shared.array(1, float32)
    row, i, step, cols = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x, y.shape[1]
    steps = -(-cols // step)
    if i == 0 and fault != Fault.sum_not_zeroed:
        square[0] = float32(0)
    if fault != Fault.no_barrier_after_zero:
        cuda.syncthreads()

    mine = float32(0)
    for turn in range(steps):
        col = turn * step + i
        if fault == Fault.negative_column:
            col = cols - 1 - col
        if col < cols:
            value = float32(x[row * x_row + col * x_col])
            mine += value * value
            if fault == Fault.sum_float16:
                mine = float32(float16(mine))
            if fault == Fault.barrier_in_loop:
                cuda.syncthreads()
    if fault == Fault.sum_without_atomic:
        square[0] += mine
    else:
        cuda.atomic.add(square, 0, mine)
    cuda.syncthreads()

    if i == 0:
        count = float32(steps * step if fault == Fault.count_of_steps else cols)
        if fault == Fault.count_float16:
            count = float32(float16(count))
        if fault == Fault.eps_outside_the_root:
            factor[0] = float32(1) / (math.sqrt(square[0] / count) + eps)
        elif fault == Fault.eps_in_the_sum:
            factor[0] = float32(1) / math.sqrt((square[0] + eps) / count)
        else:
            factor[0] = float32(1) / math.sqrt(square[0] / count + eps)
    if fault != Fault.no_barrier_before_factor:
        cuda.syncthreads()
    if fault == Fault.weight_stride_ignored:
        w_col = 1
    for turn in range(steps):
        col = turn * step + i
        if col < cols or fault == Fault.tail_unguarded:
            y[row, col] = (
                float32(x[row * x_row + min(col, cols - 1) * x_col]) * factor[0] * float32(weight[col * w_col])
            )


KERNELS = SHARED | {
    "summed": Kernel("known-good", "one block per row, whose threads add to one sum in shared memory"),
    "sum_not_zeroed": Kernel(
        "accumulator", "threads add to a sum in shared memory that nothing has set to 0", "UninitialisedShared"
    ),
    "no_barrier_after_zero": Kernel(
        "race", "no barrier between setting the sum to 0 and adding to it", "UninitialisedShared"
    ),
    "sum_without_atomic": Kernel(
        "race", "threads add to the sum in shared memory by load and store without an atomic", "RaceCondition"
    ),
    "sum_float16": Kernel("precision", "a thread adds its squares in float16"),
    "eps_outside_the_root": Kernel("eps", "eps is added to the root instead of under it"),
    "eps_in_the_sum": Kernel("eps", "eps is added to the sum of squares and divided by the number of columns"),
    "eps_float16": Kernel("precision", "eps is passed as a float16, in which 1e-6 has four bits"),
    "count_of_steps": Kernel("variance", "the mean square is over the columns rounded up to a multiple of the block"),
    "no_barrier_before_factor": Kernel(
        "race",
        "no barrier between the thread that writes the factor of a row to shared memory and those that read it",
        "UninitialisedShared",
    ),
    "barrier_in_loop": Kernel(
        "race",
        "a barrier inside a branch that threads beyond the last column do not take",
        "DivergentBarrier|UninitialisedShared",
    ),
    "count_float16": Kernel(
        "precision",
        "the number of columns passes through float16, which has no odd numbers beyond 2048",
        dtypes=("float32",),
    ),
    "negative_column": Kernel(
        "bounds",
        "columns are counted from the end, and threads beyond the first one read an index below 0",
        "OutOfBounds",
    ),
    "tail_unguarded": Kernel(
        "bounds", "the last step stores without asking whether there is such a column", "OutOfBounds"
    ),
    "last_row": Kernel("tail", "the grid has one block too few: the last row is not written"),
}


def _summed(x: torch.Tensor, weight: torch.Tensor, *, eps: float = 1e-6, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        narrow = np.float32(np.float16(eps) if fault == "eps_float16" else eps)
        blocks = rows - 1 if fault == "last_row" and rows > 1 else rows
        operands = flat(x), *x.stride(), flat(weight), weight.stride(0), y, narrow
        launch(Fault, fault, _summed_kernel, blocks, min(32 * -(-cols // 32), 64), *operands)
    return y


plant_kernels(
    globals(),
    _summed,
    KERNELS,
    "summed",
    "sum_not_zeroed",
    "no_barrier_after_zero",
    "sum_without_atomic",
    "sum_float16",
    "eps_outside_the_root",
    "eps_in_the_sum",
    "eps_float16",
    "count_of_steps",
    "no_barrier_before_factor",
    "barrier_in_loop",
    "count_float16",
    "negative_column",
    "tail_unguarded",
    "weight_stride_ignored",
    "last_row",
    deterministic=False,
)
