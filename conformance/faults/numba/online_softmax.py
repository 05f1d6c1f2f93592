"""Wrong kernels of online_softmax: a few blocks walk over the rows and merge (m, l) pairs by shuffles."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.numba._launching import flat, launch
from touchstone.conformance.faults.online_softmax import KERNELS as SHARED

_ALL = 0xFFFFFFFF
_LOW, _HIGH, _NAN = np.float32(-math.inf), np.float32(math.inf), np.float32(math.nan)


class Fault(IntEnum):
    none = 0
    sum_not_rescaled = 1
    merge_not_rescaled = 2
    warps_not_rescaled = 3
    maximum_from_zero = 4
    infinite_shift = 5
    lanes_left_out = 6
    mask_of_half = 7
    steps_of_half = 8
    no_barrier_before_pairs = 9
    no_barrier_before_result = 10
    lse_of_base_two = 11


@cuda.jit(device=True)
def _shift(m, fault):
    """exp(x - _shift(m)) is never that of inf - inf, which would poison the sum of a row that begins with -inf."""
    return float32(0) if abs(m) == _HIGH and fault != Fault.infinite_shift else m


@cuda.jit(device=True)
def _merged(m, l, other, sum, rescaled, fault):
    """The pair of two sets of columns from their pairs."""
    larger = max(m, other)
    if not rescaled:
        return larger, l + sum
    return larger, l * math.exp(m - _shift(larger, fault)) + sum * math.exp(other - _shift(larger, fault))


@cuda.jit
def _block_kernel(x, x_row, x_col, y, lse, fault):
    # m is the maximum and l the sum of exp(x - m) of a thread's columns, then of a warp's, then of the row's.
    maxima = cuda.shared.array(4, float32)
    sums = cuda.shared.array(4, float32)
    result = cuda.shared.array(2, float32)
    lane, warp, cols = cuda.laneid, cuda.threadIdx.x // 32, y.shape[1]

    for row in range(cuda.blockIdx.x, y.shape[0], cuda.gridDim.x):
        m = float32(0) if fault == Fault.maximum_from_zero else _LOW
        l = float32(0)
        for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            value = float32(x[row * x_row + col * x_col])
            m, l = _merged(m, l, value, float32(1), fault != Fault.sum_not_rescaled, fault)

        if fault != Fault.lanes_left_out or cuda.threadIdx.x < cols:
            mask = 0xFFFF if fault == Fault.mask_of_half else _ALL
            step = 8 if fault == Fault.steps_of_half else 16
            while step > 0:
                other, sum = cuda.shfl_xor_sync(mask, m, step), cuda.shfl_xor_sync(mask, l, step)
                m, l = _merged(m, l, other, sum, fault != Fault.merge_not_rescaled, fault)
                step //= 2
        if lane == 0:
            maxima[warp] = m
            sums[warp] = l
        if fault != Fault.no_barrier_before_pairs:
            cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            for i in range(1, cuda.blockDim.x // 32):
                m, l = _merged(m, l, maxima[i], sums[i], fault != Fault.warps_not_rescaled, fault)
            result[0] = _shift(m, fault)
            result[1] = _NAN if m == _HIGH else l  # as torch has it: a row with +inf is NaN
            if l == float32(0):
                lse[row] = _LOW
            else:
                lse[row] = _shift(m, fault) + (math.log2(l) if fault == Fault.lse_of_base_two else math.log(l))
        if fault != Fault.no_barrier_before_result:
            cuda.syncthreads()
        for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            y[row, col] = math.exp(float32(x[row * x_row + col * x_col]) - result[0]) / result[1]


KERNELS = SHARED | {
    "sum_not_rescaled": Kernel("rescale", "the running sum takes each column as it is when the maximum has grown"),
    "warps_not_rescaled": Kernel(
        "rescale", "the sums of the warps are added as they are, each relative to its own maximum"
    ),
    "mask_of_half": Kernel(
        "race", "the mask of the shuffles names the lower 16 lanes, and all 32 come", "InactiveLanes"
    ),
    "steps_of_half": Kernel("tail", "the shuffles begin with a distance of 8, and the halves of a warp never meet"),
    "no_barrier_before_pairs": Kernel(
        "race", "no barrier between the warps' pairs and the thread that merges them", "UninitialisedShared"
    ),
    "pairs_overrun": Kernel("bounds", "eight warps write their pairs to shared arrays of four", "OutOfBounds"),
    "lse_of_base_two": Kernel("formula", "the logarithm in lse is that of base 2"),
}


def _block(x: torch.Tensor, fault: str = "none") -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    lse = torch.empty((rows,), dtype=torch.float32, device=x.device)
    if rows:
        threads = min(32 * -(-max(cols, 1) // 32), 256 if fault == "pairs_overrun" else 128)
        source = flat(x) if cols else y.view(-1)
        launch(Fault, fault, _block_kernel, min(rows, 3), threads, source, *x.stride(), y, lse)
    return y, lse


plant_kernels(
    globals(),
    _block,
    KERNELS,
    "block",
    "sum_not_rescaled",
    "merge_not_rescaled",
    "warps_not_rescaled",
    "maximum_from_zero",
    "infinite_shift",
    "lanes_left_out",
    "mask_of_half",
    "steps_of_half",
    "no_barrier_before_pairs",
    "no_barrier_before_result",
    "pairs_overrun",
    "lse_of_base_two",
)
