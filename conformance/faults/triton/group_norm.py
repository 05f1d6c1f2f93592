"""Wrong kernels of group_norm: a program holds a group on chip as a (channels, space) tile."""

import math

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels


@triton.jit
def _onerow_kernel(
    x_ptr,
    w_ptr,
    b_ptr,
    y_ptr,
    x_n,
    x_c,
    x_s,
    w_c,
    b_c,
    groups,
    channels,
    space,
    eps,
    FAULT: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    n, group = program // groups, program % groups
    if FAULT == "programs_by_group":
        n, group = program % (tl.num_programs(0) // groups), program // (tl.num_programs(0) // groups)
    first = group * channels
    x_ptr += n * x_n + first * x_c
    y_ptr += program * channels * space

    c = tl.arange(0, BLOCK_C).to(tl.int64)[:, None]
    s = tl.arange(0, BLOCK_S).to(tl.int64)[None, :]
    inside = (c < channels) & (s < space)
    x = tl.load(x_ptr + c * x_c + s * x_s, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x) / (channels * space)
    centred = tl.where(inside, x - mean, 0.0)
    if FAULT == "masked_lanes_in_variance":
        centred = tl.where(c < channels, x - mean, 0.0)
    count = channels * space
    if FAULT == "divided_by_space":
        count = space
    rstd = tl.rsqrt(tl.sum(centred * centred) / count + eps)

    channel = first + c
    if FAULT == "weight_of_the_first_group":
        channel = c
    elif FAULT == "weight_by_group":
        channel = group + c * 0
    y = centred * rstd * tl.load(w_ptr + channel * w_c, mask=c < channels, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + channel * b_c, mask=c < channels, other=0.0).to(tl.float32)
    tl.store(y_ptr + c * space + s, y, mask=inside)


KERNELS = {
    "masked_lanes_in_variance": Kernel(
        "mask", "lanes past the trailing axes, loaded as 0, enter the variance as the square of the mean"
    ),
    "divided_by_space": Kernel(
        "variance", "the sum of squares is divided by the trailing axes alone, without the channels of the group"
    ),
    "weight_of_the_first_group": Kernel(
        "weights", "every group takes the weights and biases of the first group's channels"
    ),
    "weight_by_group": Kernel("weights", "weight and bias are indexed by the group instead of the channel"),
    "one_group": Kernel("parameter", "all channels make one group, whatever `groups` says"),
    "programs_by_group": Kernel(
        "axis", "programs count samples fastest when they load, groups fastest when they store"
    ),
}


def _onerow(
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
    if fault == "one_group":
        groups = 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        space = math.prod(x.shape[2:])
        try:
            flat = x.view(samples, channels, space)
        except RuntimeError as error:
            raise Unsupported(f"trailing strides {x.stride()[2:]} of sizes {tuple(x.shape[2:])}") from error
        strides = (*flat.stride(), *weight.stride(), bias.stride(0) if bias is not None else 0)
        each = channels // groups
        _onerow_kernel[(samples * groups,)](
            flat,
            weight,
            bias,
            y,
            *strides,
            groups,
            each,
            space,
            eps,
            FAULT=fault,
            BLOCK_C=triton.next_power_of_2(each),
            BLOCK_S=triton.next_power_of_2(space),
        )
    return y


plant_kernels(
    globals(),
    _onerow,
    KERNELS,
    "masked_lanes_in_variance",
    "divided_by_space",
    "weight_of_the_first_group",
    "weight_by_group",
    "one_group",
    "programs_by_group",
)
