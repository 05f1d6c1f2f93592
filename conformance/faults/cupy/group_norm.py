"""Wrong kernels of group_norm: one block per group, whose warps add to totals in shared memory."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty
from touchstone.conformance.faults.group_norm import KERNELS as SHARED

_module = Faulty(__file__, "group_norm.cu")

KERNELS = SHARED | {
    "barrier_in_loop": Kernel(
        "race", "a barrier inside a loop that some threads leave a step earlier", "InactiveLanes"
    ),
    "ballot_of_some": Kernel(
        "race", "lanes without an element do not reach the ballot that names all 32", "InactiveLanes"
    ),
    "channel_within_group": Kernel(
        "weights", "the weight and bias of a channel are those of its number within the group"
    ),
    "load_unguarded": Kernel("bounds", "the loads of the mean do not ask whether the element is inside", "OutOfBounds"),
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
            flat = x.view(samples, channels, space)
        except RuntimeError:
            raise Unsupported(f"strides {x.stride()} of shape {tuple(x.shape)}; trailing axes must merge") from None
        _module.launch(
            "group_norm_totals",
            samples * groups,
            32 if channels // groups * space <= 32 else 64,
            flat,
            weight,
            bias,
            y,
            groups,
            channels // groups,
            space,
            *flat.stride(),
            weight.stride(0),
            bias.stride(0) if bias is not None else 0,
            eps,
            fault=fault,
            dtype=x.dtype,
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
    "barrier_in_loop",
    "ballot_of_some",
    "one_pass",
    "channel_within_group",
    "load_unguarded",
    deterministic=False,
)
