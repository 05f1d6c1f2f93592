"""Mutants and known-good kernels of group_norm(x, weight, bias, *, groups, eps): x and y (N, C, *)."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._norms import (
    BIAS_FLAWS,
    WEIGHT_FLAWS,
    Hat,
    hat_flaws,
    hat_known_good,
    normalise,
    root,
)
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    RIGHT_SUMS,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    row_sum,
)


def _affine(normalised, weight, bias):
    channel = (-1, *[1] * (normalised.ndim - 2))
    y = normalised * weight.reshape(channel)
    return y if bias is None else y + bias.reshape(channel)


def _group_norm(hat: Hat = normalise, scale=lambda w: w, shift=lambda b: b, split=lambda groups, channels: groups):
    """group_norm with another normaliser, with weight and bias changed, or in another number of groups."""

    def group_norm(x, weight, bias, *, groups, eps=1e-5):
        parts = split(groups, x.shape[1])
        rows = x.reshape(x.shape[0], parts, x[:1].numel() // parts)
        return _affine(hat(rows, eps).reshape(x.shape), scale(weight), None if bias is None else shift(bias))

    return group_norm


_OF_ROWS = ("statistics_of_the_previous_row", "statistics_of_row_0")
plant_flaws(globals(), {n: flaw for n, flaw in hat_flaws(centred=True).items() if n not in _OF_ROWS}, _group_norm)
plant_flaws(globals(), WEIGHT_FLAWS, lambda scale: _group_norm(scale=scale))
plant_flaws(globals(), BIAS_FLAWS, lambda shift: _group_norm(shift=shift))
plant_loads_and_stores(globals(), _group_norm())
plant_sums(
    globals(),
    {**RIGHT_SUMS, "compensation": COMPENSATED_SUM},
    lambda total: _group_norm(partial(normalise, total=total)),
)
for _name, (_about, _hat) in hat_known_good(centred=True).items():
    plant(globals(), _name, in_float32(_group_norm(_hat)), _about, "known-good")


@mutant("parameter")
@in_float32
def one_group(x, weight, bias, *, groups, eps=1e-5):
    """all channels are one group, as in a layer norm"""
    return _group_norm(split=lambda groups, channels: 1)(x, weight, bias, groups=groups, eps=eps)


@mutant("parameter")
@in_float32
def every_channel_a_group(x, weight, bias, *, groups, eps=1e-5):
    """every channel is a group of its own, as in an instance norm"""
    return _group_norm(split=lambda groups, channels: channels)(x, weight, bias, groups=groups, eps=eps)


@mutant("axis")
@in_float32
def groups_interleaved(x, weight, bias, *, groups, eps=1e-5):
    """channel c belongs to group c % groups"""
    order = torch.arange(x.shape[1]).reshape(-1, groups).T.flatten()
    plain = _group_norm()(x[:, order], torch.ones_like(weight), None, groups=groups, eps=eps)
    return _affine(plain[:, order.argsort()], weight, bias)


@mutant("bounds")
@in_float32
def groups_shifted_by_a_channel(x, weight, bias, *, groups, eps=1e-5):
    """the groups begin one channel late: the last of each is the first of its neighbour"""
    plain = _group_norm()(x.roll(-1, 1), torch.ones_like(weight), None, groups=groups, eps=eps)
    return _affine(plain.roll(1, 1), weight, bias)


def _statistics_moved(x, eps, dim):
    mean = x.mean(-1, keepdim=True)
    rstd = root(row_sum((x - mean).square()) / x.shape[-1], eps)
    return (x - mean.roll(1, dim)) * rstd.roll(1, dim)


@mutant("axis")
@in_float32
def statistics_of_the_previous_group(x, weight, bias, *, groups, eps=1e-5):
    """the statistics are those of the group before, in the same sample"""
    return _group_norm(partial(_statistics_moved, dim=1))(x, weight, bias, groups=groups, eps=eps)


@mutant("axis")
@in_float32
def statistics_of_the_previous_sample(x, weight, bias, *, groups, eps=1e-5):
    """the statistics are those of the sample before"""
    return _group_norm(partial(_statistics_moved, dim=0))(x, weight, bias, groups=groups, eps=eps)


@mutant("axis")
@in_float32
def statistics_over_the_batch(x, weight, bias, *, groups, eps=1e-5):
    """a group's statistics are taken over all samples, as in a batch norm"""

    def hat(rows, eps):
        mean = rows.mean((0, 2), keepdim=True)
        return (rows - mean) * ((rows - mean).square().mean((0, 2), keepdim=True) + eps).rsqrt()

    return _group_norm(hat)(x, weight, bias, groups=groups, eps=eps)


@mutant("tail")
@in_float32
def statistics_of_the_first_channel(x, weight, bias, *, groups, eps=1e-5):
    """the statistics are those of the first channel of each group"""

    def hat(rows, eps):
        channel = rows[..., : rows.shape[-1] * groups // x.shape[1]]
        mean = channel.mean(-1, keepdim=True)
        return (rows - mean) * ((channel - mean).square().mean(-1, keepdim=True) + eps).rsqrt()

    return _group_norm(hat)(x, weight, bias, groups=groups, eps=eps)


@mutant("variance")
@in_float32
def divides_by_channels(x, weight, bias, *, groups, eps=1e-5):
    """the variance is divided by the channels of a group, not by its elements"""

    def hat(rows, eps):
        centre = rows - rows.mean(-1, keepdim=True)
        return centre * root(row_sum(centre.square()) / (x.shape[1] // groups), eps)

    return _group_norm(hat)(x, weight, bias, groups=groups, eps=eps)


@mutant("weights")
@in_float32
def weight_of_the_group(x, weight, bias, *, groups, eps=1e-5):
    """weight is indexed by the group instead of the channel"""
    group = torch.arange(weight.numel()) // (weight.numel() // groups)
    return _group_norm(scale=lambda w: w[group])(x, weight, bias, groups=groups, eps=eps)


@mutant("weights")
@in_float32
def weight_of_the_channel_in_its_group(x, weight, bias, *, groups, eps=1e-5):
    """weight is indexed by the channel's place in its group"""
    place = torch.arange(weight.numel()) % (weight.numel() // groups)
    return _group_norm(scale=lambda w: w[place])(x, weight, bias, groups=groups, eps=eps)


@mutant("weights")
@in_float32
def weight_of_the_position(x, weight, bias, *, groups, eps=1e-5):
    """weight is indexed along the last axis, as if channels came last"""
    y = _group_norm()(x, torch.ones_like(weight), None, groups=groups, eps=eps)
    position = torch.arange(math.prod(x.shape[1:])).reshape(x.shape[1:]) % x.shape[1]
    return _affine(y * weight[position], torch.ones_like(weight), bias)


@mutant("weights")
@in_float32
def bias_of_the_group(x, weight, bias, *, groups, eps=1e-5):
    """bias is indexed by the group instead of the channel"""
    group = torch.arange(weight.numel()) // (weight.numel() // groups)
    return _group_norm(shift=lambda b: b[group])(x, weight, bias, groups=groups, eps=eps)


@known_good
@in_float32
def library(x, weight, bias, *, groups, eps=1e-5):
    """torch's group_norm; rows of one element, which it refuses, are 0 or NaN before the bias"""
    if not x.numel():
        return x.clone()
    if x[:1].numel() == groups:
        return _affine(x - x, weight, bias)
    return F.group_norm(x, groups, weight, bias, eps)


@known_good
def layer_norm_of_groups(x, weight, bias, *, groups, eps=1e-5):
    """torch's layer_norm over each group seen as a row, in float64"""
    if not x.numel():
        return x.clone()
    rows = x.double().reshape(x.shape[0] * groups, -1)
    plain = F.layer_norm(rows, rows.shape[1:], eps=eps).reshape(x.shape)
    return _affine(plain, weight.double(), None if bias is None else bias.double()).to(x.dtype)


@known_good
@in_float32
def statistics_by_channel(x, weight, bias, *, groups, eps=1e-5):
    """mean and variance of every channel, merged over the channels of a group"""
    if not x.numel():
        return x.clone()
    channels = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
    means = channels.mean(-1, keepdim=True)
    squares = (channels - means).square().mean(-1, keepdim=True)
    mean = means.mean(2, keepdim=True)
    variance = squares.mean(2, keepdim=True) + (means - mean).square().mean(2, keepdim=True)
    return _affine(((channels - mean) / torch.sqrt(variance + eps)).reshape(x.shape), weight, bias)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "totals": Kernel("known-good", "one block per group, whose warps add to totals in shared memory"),
    "totals_not_zeroed": Kernel("accumulator", "the totals in shared memory are not set to 0", "UninitialisedShared"),
    "no_barrier_after_zero": Kernel(
        "race", "no barrier between setting the totals to 0 and adding to them", "RaceCondition"
    ),
    "totals_without_atomic": Kernel(
        "race", "warps add to the total in shared memory by load and store without an atomic", "RaceCondition"
    ),
    "every_lane_adds": Kernel(
        "accumulator", "every lane adds its warp's sum to the total, which then is 32 times too large"
    ),
    "no_barrier_before_mean": Kernel(
        "race", "no barrier between adding to the total and reading it", "under threads in reverse"
    ),
    "one_pass": Kernel("variance", "the variance is E[x^2] - E[x]^2 from one pass, which cancels"),
}
