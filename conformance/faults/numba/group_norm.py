"""Wrong kernels of group_norm: one block per group, whose warps add to totals in shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.group_norm import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch

_ALL = 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    totals_not_zeroed = 1
    no_barrier_after_zero = 2
    totals_without_atomic = 3
    every_lane_adds = 4
    no_barrier_before_mean = 5
    one_pass = 6
    channel_within_group = 7
    ballot_of_some = 8
    unbiased = 9
    square_of_the_first_warp = 10


@cuda.jit(device=True)
def _warp_sum(value):
    step = 1
    while step < 32:
        value += cuda.shfl_xor_sync(_ALL, value, step)
        step *= 2
    return value


@cuda.jit
def _totals_kernel(x, x_n, x_c, x_s, weight, w_c, bias, b_c, has_bias, y, channels, space, eps, fault):
    totals = cuda.shared.array(2, float32)  # of the elements, and of their squared distances from the mean
    count, groups = channels * space, y.shape[1]
    sample, group = cuda.blockIdx.x // groups, cuda.blockIdx.x % groups
    start = sample * x_n + group * channels * x_c
    if cuda.threadIdx.x < 2 and fault != Fault.totals_not_zeroed:
        totals[cuda.threadIdx.x] = float32(0)
    if fault != Fault.no_barrier_after_zero:
        cuda.syncthreads()

    mine, squares = float32(0), float32(0)
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        value = float32(x[start + i // space * x_c + i % space * x_s])
        mine += value
        squares += value * value
    if fault == Fault.ballot_of_some and cuda.threadIdx.x < count:
        cuda.ballot_sync(_ALL, 1)
    mine = _warp_sum(mine)
    if cuda.laneid == 0 or fault == Fault.every_lane_adds:
        if fault == Fault.totals_without_atomic:
            totals[0] += mine
        else:
            cuda.atomic.add(totals, 0, mine)
    if fault != Fault.no_barrier_before_mean:
        cuda.syncthreads()
    mean = totals[0] / float32(count)

    mine = float32(0)
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        centred = float32(x[start + i // space * x_c + i % space * x_s]) - mean
        mine += centred * centred
    mine = _warp_sum(squares if fault == Fault.one_pass else mine)
    if cuda.laneid == 0 and (fault != Fault.square_of_the_first_warp or cuda.threadIdx.x == 0):
        cuda.atomic.add(totals, 1, mine)
    cuda.syncthreads()
    variance = totals[1] / float32(max(count - 1, 1) if fault == Fault.unbiased else count)
    if fault == Fault.one_pass:
        variance = max(variance - mean * mean, float32(0))
    rstd = float32(1) / math.sqrt(variance + eps)
    for i in range(cuda.threadIdx.x, count, cuda.blockDim.x):
        channel = i // space + (0 if fault == Fault.channel_within_group else group * channels)
        normed = (float32(x[start + i // space * x_c + i % space * x_s]) - mean) * rstd
        shift = float32(bias[channel * b_c]) if has_bias else float32(0)
        y[sample, group, i] = normed * float32(weight[channel * w_c]) + shift


KERNELS = SHARED | {
    "ballot_of_some": Kernel(
        "race", "threads without an element do not reach the ballot that names all 32 lanes", "InactiveLanes"
    ),
    "unbiased": Kernel("variance", "the variance is over one element less than there are"),
    "square_of_the_first_warp": Kernel("variance", "only the first warp adds its squares to the total"),
    "channel_within_group": Kernel("weights", "weight and bias are those of the channels of the first group"),
}


def _totals(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    groups: int,
    eps: float = 1e-5,
    fault: str = "none",
) -> torch.Tensor:
    samples, channels = shapes("N C ..., C, C?", x=x, weight=weight, bias=bias)
    if groups < 1 or channels % groups:
        raise ValueError(f"groups: {channels} channels do not divide into {groups} groups")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        space = math.prod(x.shape[2:])
        try:
            merged = x.view(samples, channels, space)
        except RuntimeError:
            raise Unsupported(f"strides {x.stride()} of shape {tuple(x.shape)}; trailing axes must merge") from None
        shift = weight if bias is None else bias
        operands = flat(x), *merged.stride(), flat(weight), weight.stride(0), flat(shift), shift.stride(0)
        launch(
            Fault,
            fault,
            _totals_kernel,
            samples * groups,
            32 if channels // groups * space <= 32 else 64,
            *operands,
            bias is not None,
            y.view(samples, groups, -1),
            channels // groups,
            space,
            np.float32(eps),
        )
    return y


plant_kernels(
    globals(),
    _totals,
    KERNELS,
    "totals",
    "totals_not_zeroed",
    "no_barrier_after_zero",
    "totals_without_atomic",
    "every_lane_adds",
    "no_barrier_before_mean",
    "ballot_of_some",
    "one_pass",
    "unbiased",
    "square_of_the_first_warp",
    "channel_within_group",
    deterministic=False,
)
