"""Wrong kernels of rms_norm: one block per row, whose threads add to one sum in shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    sum_not_zeroed = 1
    no_barrier_after_zero = 2
    plain_add = 3
    narrow = 4
    eps_outside = 5
    eps_in_sum = 6
    count_of_steps = 7
    no_barrier_before_factor = 8
    count_float16 = 9
    negative_column = 10
    tail_unguarded = 11
    weight_stride = 12
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
            if fault == Fault.narrow:
                mine = float32(float16(mine))
            if fault == Fault.barrier_in_loop:
                cuda.syncthreads()
    if fault == Fault.plain_add:
        square[0] += mine
    else:
        cuda.atomic.add(square, 0, mine)
    cuda.syncthreads()

    if i == 0:
        count = float32(steps * step if fault == Fault.count_of_steps else cols)
        if fault == Fault.count_float16:
            count = float32(float16(count))
        if fault == Fault.eps_outside:
            factor[0] = float32(1) / (math.sqrt(square[0] / count) + eps)
        elif fault == Fault.eps_in_sum:
            factor[0] = float32(1) / math.sqrt((square[0] + eps) / count)
        else:
            factor[0] = float32(1) / math.sqrt(square[0] / count + eps)
    if fault != Fault.no_barrier_before_factor:
        cuda.syncthreads()
    if fault == Fault.weight_stride:
        w_col = 1
    for turn in range(steps):
        col = turn * step + i
        if col < cols or fault == Fault.tail_unguarded:
            y[row, col] = (
                float32(x[row * x_row + min(col, cols - 1) * x_col]) * factor[0] * float32(weight[col * w_col])
            )


def _summed(x: torch.Tensor, weight: torch.Tensor, eps: float, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, cols", x=x, weight=weight)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        narrow = np.float32(np.float16(eps) if fault == "eps_float16" else eps)
        blocks = rows - 1 if fault == "last_row" and rows > 1 else rows
        operands = flat(x), *x.stride(), flat(weight), weight.stride(0), y, narrow
        launch(Fault, fault, _summed_kernel, blocks, min(32 * -(-cols // 32), 64), *operands)
    return y


@known_good(deterministic=False)
def summed(x, weight, *, eps=1e-6):
    """one block per row, whose threads add to one sum in shared memory"""
    return _summed(x, weight, eps)


@mutant("accumulator", deterministic=False)
def sum_not_zeroed(x, weight, *, eps=1e-6):
    """threads add to a sum in shared memory that nothing has set to 0"""
    return _summed(x, weight, eps, "sum_not_zeroed")


@mutant("race", deterministic=False)
def no_barrier_after_zero(x, weight, *, eps=1e-6):
    """no barrier between setting the sum to 0 and adding to it"""
    return _summed(x, weight, eps, "no_barrier_after_zero")


@mutant("race", deterministic=False)
def sum_without_atomic(x, weight, *, eps=1e-6):
    """threads add to the sum in shared memory by load and store without an atomic"""
    return _summed(x, weight, eps, "plain_add")


@mutant("precision", deterministic=False)
def sum_float16(x, weight, *, eps=1e-6):
    """a thread adds its squares in float16"""
    return _summed(x, weight, eps, "narrow")


@mutant("eps", deterministic=False)
def eps_outside_the_root(x, weight, *, eps=1e-6):
    """eps is added to the root instead of under it"""
    return _summed(x, weight, eps, "eps_outside")


@mutant("eps", deterministic=False)
def eps_in_the_sum(x, weight, *, eps=1e-6):
    """eps is added to the sum of squares and divided by the number of columns"""
    return _summed(x, weight, eps, "eps_in_sum")


@mutant("precision", deterministic=False)
def eps_float16(x, weight, *, eps=1e-6):
    """eps is passed as a float16, in which 1e-6 has four bits"""
    return _summed(x, weight, eps, "eps_float16")


@mutant("variance", deterministic=False)
def count_of_steps(x, weight, *, eps=1e-6):
    """the mean square is over the columns rounded up to a multiple of the block"""
    return _summed(x, weight, eps, "count_of_steps")


@mutant("race", deterministic=False)
def no_barrier_before_factor(x, weight, *, eps=1e-6):
    """no barrier between the thread that writes the factor of a row to shared memory and those that read it"""
    return _summed(x, weight, eps, "no_barrier_before_factor")


@mutant("race", deterministic=False)
def barrier_in_loop(x, weight, *, eps=1e-6):
    """a barrier inside a branch that threads beyond the last column do not take"""
    return _summed(x, weight, eps, "barrier_in_loop")


@mutant("precision", dtypes=("float32",), deterministic=False)
def count_float16(x, weight, *, eps=1e-6):
    """the number of columns passes through float16, which has no odd numbers beyond 2048"""
    return _summed(x, weight, eps, "count_float16")


@mutant("bounds", deterministic=False)
def negative_column(x, weight, *, eps=1e-6):
    """columns are counted from the end, and threads beyond the first one read an index below 0"""
    return _summed(x, weight, eps, "negative_column")


@mutant("bounds", deterministic=False)
def tail_unguarded(x, weight, *, eps=1e-6):
    """the last step stores without asking whether there is such a column"""
    return _summed(x, weight, eps, "tail_unguarded")


@mutant("strides", deterministic=False)
def weight_stride_ignored(x, weight, *, eps=1e-6):
    """the stride of weight is taken to be 1"""
    return _summed(x, weight, eps, "weight_stride")


@mutant("tail", deterministic=False)
def last_row(x, weight, *, eps=1e-6):
    """the grid has one block too few: the last row is not written"""
    return _summed(x, weight, eps, "last_row")
