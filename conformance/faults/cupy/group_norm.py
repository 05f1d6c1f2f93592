"""Wrong kernels of group_norm: one block per group, whose warps add to totals in shared memory."""

import math

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "group_norm.cu")


def _totals(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, groups: int, eps: float, fault: str = "none"
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
            64,
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


@known_good(deterministic=False)
def totals(x, weight, bias, *, groups, eps=1e-5):
    """one block per group, whose warps add to totals in shared memory"""
    return _totals(x, weight, bias, groups, eps)


@mutant("accumulator", deterministic=False)
def totals_not_zeroed(x, weight, bias, *, groups, eps=1e-5):
    """the totals in shared memory are not set to 0"""
    return _totals(x, weight, bias, groups, eps, "totals_not_zeroed")


@mutant("race", deterministic=False)
def no_barrier_after_zero(x, weight, bias, *, groups, eps=1e-5):
    """no barrier between setting the totals to 0 and adding to them"""
    return _totals(x, weight, bias, groups, eps, "no_barrier_after_zero")


@mutant("race", deterministic=False)
def totals_without_atomic(x, weight, bias, *, groups, eps=1e-5):
    """warps add to the total in shared memory by load and store without an atomic"""
    return _totals(x, weight, bias, groups, eps, "plain_add")


@mutant("accumulator", deterministic=False)
def every_lane_adds(x, weight, bias, *, groups, eps=1e-5):
    """every lane adds its warp's sum to the total, which then is 32 times too large"""
    return _totals(x, weight, bias, groups, eps, "every_lane_adds")


@mutant("race", deterministic=False)
def no_barrier_before_mean(x, weight, bias, *, groups, eps=1e-5):
    """no barrier between adding to the total and reading it"""
    return _totals(x, weight, bias, groups, eps, "no_barrier_before_mean")


@mutant("race", deterministic=False)
def barrier_in_loop(x, weight, bias, *, groups, eps=1e-5):
    """a barrier inside a loop that some threads leave a step earlier"""
    return _totals(x, weight, bias, groups, eps, "barrier_in_loop")


@mutant("race", deterministic=False)
def ballot_of_some(x, weight, bias, *, groups, eps=1e-5):
    """lanes without an element do not reach the ballot that names all 32"""
    return _totals(x, weight, bias, groups, eps, "ballot_short")


@mutant("variance", deterministic=False)
def one_pass(x, weight, bias, *, groups, eps=1e-5):
    """the variance is E[x^2] - E[x]^2 from one pass, which cancels"""
    return _totals(x, weight, bias, groups, eps, "one_pass")


@mutant("weights", deterministic=False)
def channel_within_group(x, weight, bias, *, groups, eps=1e-5):
    """the weight and bias of a channel are those of its number within the group"""
    return _totals(x, weight, bias, groups, eps, "channel_within_group")


@mutant("bounds", deterministic=False)
def load_unguarded(x, weight, bias, *, groups, eps=1e-5):
    """the loads of the mean do not ask whether the element is inside"""
    return _totals(x, weight, bias, groups, eps, "load_guard")
