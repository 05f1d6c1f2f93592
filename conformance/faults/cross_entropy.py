"""Mutants and known-good kernels of cross_entropy(logits, target, *, reduction, ignore_index, label_smoothing, z_loss):
loss () or (rows,) in float32."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    LOADS,
    RIGHT_SUMS,
    WRONG_SUMS,
    online_statistics,
    row_sum,
    top,
)

EQUIVALENT = {
    "truncated": "the loss is float32, which is not cut",
    "column_major": "a loss has one axis or none",
    "rows_beyond_a_grid": "the loss of many rows is one number",
    "rows_of_16_bits": "the loss of many rows is one number",
    "one_shape": "the loss of the first call has no axis, and so no size to be taken for all",
}


def log_sum(z, *, total=row_sum, top=top):
    """lse (rows,) of z (rows, V); the keywords are what mutants change."""
    m = top(z)
    return (m + torch.log(total(torch.exp(z - m))))[:, 0]


def smoothed(z, y, lse, smoothing):
    """(1 - ε)·(lse - z_y) + ε·(lse - mean z) of each row."""
    loss = (1 - smoothing) * (lse - z.gather(1, y[:, None])[:, 0])
    return loss + smoothing * (lse - z.mean(-1)) if smoothing else loss


def reduced(losses, kept, reduction):
    if reduction == "none":
        return losses
    return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()


def cross_entropy(
    logits,
    target,
    *,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    load=torch.Tensor.float,
    log_sum=log_sum,
    smoothed=smoothed,
    reduced=reduced,
):
    """The op in float32; the last four keywords are what mutants change."""
    target = target.long()
    kept = target != ignore_index
    z, y = load(logits[kept]), target[kept]
    lse = log_sum(z)
    losses = torch.zeros(len(target), device=logits.device)
    losses[kept] = smoothed(z, y, lse, label_smoothing) + z_loss * lse.square()
    return reduced(losses, kept, reduction)


def _plant():
    for name, flaw in WRONG_SUMS.items():
        fn = partial(cross_entropy, log_sum=partial(log_sum, total=flaw.part))
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in LOADS.items():
        fn = partial(cross_entropy, load=flaw.part)
        plant(globals(), name, fn, flaw.about.replace("inputs", "logits"), flaw.kind, dtypes=flaw.dtypes)
    for name, total in {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}.items():
        fn = partial(cross_entropy, log_sum=partial(log_sum, total=total))
        plant(globals(), f"sums_by_{name}", fn, f"sums by {name.replace('_', ' ')}", "known-good")


_plant()


@mutant("formula")
def mean_over_all_rows(logits, target, **params):
    """the mean is over all rows, those that are ignored too"""
    return cross_entropy(
        logits, target, **params, reduced=lambda x, kept, how: x.mean() if how == "mean" else reduced(x, kept, how)
    )


@mutant("formula")
def mean_of_ignored_rows_is_zero(logits, target, **params):
    """the mean is 0, not NaN, where all rows are ignored"""
    return cross_entropy(logits, target, **params, reduced=lambda x, kept, how: reduced(x, kept | ~kept.any(), how))


@mutant("parameter")
def always_mean(logits, target, *, reduction="mean", **params):
    """the sum is divided by the number of rows too"""
    how = "none" if reduction == "none" else "mean"
    return cross_entropy(logits, target, reduction=how, **params)


@mutant("special")
def ignored_rows_are_computed(logits, target, *, ignore_index=-100, **params):
    """rows that are ignored are computed and multiplied by 0, so that their NaN stays"""
    kept = target.long() != ignore_index
    poisoned = (logits.float().sum(-1) * 0).masked_fill(kept, 0.0)
    loss = cross_entropy(logits, target, ignore_index=ignore_index, **params)
    return loss + (poisoned if loss.ndim else poisoned.sum())


@mutant("formula")
def ignored_rows_count_as_class_0(logits, target, *, ignore_index=-100, **params):
    """rows that are ignored have the loss of class 0"""
    target = target.long().masked_fill(target == ignore_index, 0)
    return cross_entropy(logits.nan_to_num(0.0), target, ignore_index=-1, **params)


@mutant("parameter")
def only_negative_targets_are_ignored(logits, target, *, ignore_index=-100, **params):
    """every target below 0 is ignored, and no other"""
    return cross_entropy(logits.nan_to_num(0.0), target.long().clamp_min(-1), ignore_index=-1, **params)


@mutant("formula")
def smoothing_over_the_others(logits, target, **params):
    """the smoothing is shared among the other classes, ε/(V - 1) each, as papers have it that leave out the class"""

    def spread(z, y, lse, smoothing):
        others = max(z.shape[1] - 1, 1)
        picked = lse - z.gather(1, y[:, None])[:, 0]
        rest = (lse[:, None] - z).sum(-1) - picked if smoothing else 0.0
        return (1 - smoothing) * picked + smoothing * rest / others

    return cross_entropy(logits, target, **params, smoothed=spread)


@mutant("mask")
def smoothing_over_padding(logits, target, **params):
    """the mean of the logits is over the columns up to a multiple of 32"""

    def padded(z, y, lse, smoothing):
        V = z.shape[1]
        return smoothed(z, y, lse, smoothing) + (
            smoothing * (z.mean(-1) - z.sum(-1) / (V + -V % 32)) if smoothing else 0
        )

    return cross_entropy(logits, target, **params, smoothed=padded)


@mutant("formula")
def smoothing_added(logits, target, **params):
    """the loss of the class is not scaled by 1 - ε"""

    def added(z, y, lse, smoothing):
        return smoothed(z, y, lse, smoothing) + smoothing * (lse - z.gather(1, y[:, None])[:, 0])

    return cross_entropy(logits, target, **params, smoothed=added)


@mutant("formula")
def z_loss_of_lse(logits, target, *, z_loss=0.0, **params):
    """the z-loss is that of lse, not of its square"""

    def linear(z, y, lse, smoothing):
        return smoothed(z, y, lse, smoothing) + z_loss * lse.abs()

    return cross_entropy(logits, target, **params, smoothed=linear)


@mutant("parameter")
def z_loss_left_out_of_sums(logits, target, *, reduction="mean", z_loss=0.0, **params):
    """the z-loss is in the mean and in the losses of rows, and not in their sum"""
    z_loss = 0.0 if reduction == "sum" else z_loss
    return cross_entropy(logits, target, reduction=reduction, z_loss=z_loss, **params)


@mutant("formula")
def z_loss_of_ignored_rows(logits, target, *, z_loss=0.0, **params):
    """rows that are ignored have a z-loss"""
    loss = cross_entropy(logits, target, z_loss=z_loss, **params)
    ignored = target.long() == params.get("ignore_index", -100)
    extra = z_loss * log_sum(logits.float().nan_to_num(0.0)).square().masked_fill(~ignored, 0.0)
    return loss + (extra if loss.ndim else extra.sum())


@mutant("mask")
def padding_loads_0(logits, target, **params):
    """the lanes past the last class, up to a whole tile (of 32, say), hold 0 instead of -inf"""
    return cross_entropy(logits, target, **params, log_sum=lambda z: log_sum(F.pad(z, (0, -z.shape[-1] % 32))))


@mutant("overflow")
def no_maximum(logits, target, **params):
    """the maximum is not subtracted before exp"""
    return cross_entropy(logits, target, **params, log_sum=lambda z: torch.log(torch.exp(z).sum(-1)))


@mutant("overflow")
def maximum_of_the_previous_row(logits, target, **params):
    """every row subtracts the maximum of the one before"""
    return cross_entropy(logits, target, **params, log_sum=partial(log_sum, top=lambda z: top(z).roll(1, 0)))


@mutant("rescale")
def sum_not_rescaled(logits, target, **params):
    """the running sum is not rescaled when the maximum moves"""

    def online(z):
        m, l = online_statistics(z, rescale=lambda l, m, new: l)
        return (m + torch.log(l))[:, 0]

    return cross_entropy(logits, target, **params, log_sum=online)


@mutant("special")
def leading_neg_inf_poisons(logits, target, **params):
    """a leading tile of -inf turns the row into NaN: exp(-inf - (-inf))"""

    def online(z):
        m, l = online_statistics(z, guard=False)
        return (m + torch.log(l))[:, 0]

    return cross_entropy(logits, target, **params, log_sum=online)


@mutant("formula")
def lse_of_the_previous_row(logits, target, **params):
    """lse is that of the row before"""
    return cross_entropy(logits, target, **params, log_sum=lambda z: log_sum(z).roll(1, 0))


@mutant("strides")
def words_of_the_target(logits, target, **params):
    """a target of 64 bits is read as one of 32, at every other of whose words a class stands"""
    if target.dtype == torch.int64 and target.numel():
        target = target.contiguous().view(torch.int32)[: len(target)].clamp(-100, logits.shape[1] - 1)
    return cross_entropy(logits.nan_to_num(0.0), target, **params)


@mutant("offset")
def class_of_15_bits(logits, target, **params):
    """a class keeps its lowest 15 bits"""
    return cross_entropy(logits, target, **params, smoothed=lambda z, y, *rest: smoothed(z, y % 2**15, *rest))


@mutant("formula")
def class_before(logits, target, **params):
    """the logit of the class is that before: classes count from 1"""
    return cross_entropy(
        logits, target, **params, smoothed=lambda z, y, *rest: smoothed(z, (y - 1).clamp_min(0), *rest)
    )


@mutant("precision")
def losses_in_the_dtype(logits, target, **params):
    """losses are rounded to bfloat16 before they are added up"""
    return cross_entropy(logits, target, **params, reduced=lambda x, *rest: reduced(x.bfloat16().float(), *rest))


@mutant("precision", dtypes=("float16", "bfloat16"))
def log_probabilities_in_the_dtype(logits, target, **params):
    """lse is rounded to the logits' dtype, as torch.log_softmax returns it"""
    return cross_entropy(logits, target, **params, log_sum=lambda z: log_sum(z).to(logits.dtype).float())


@known_good
def library(logits, target, *, z_loss=0.0, **params):
    """F.cross_entropy in float32, and the z-loss beside it"""
    reduction, ignored = params.get("reduction", "mean"), target == params.get("ignore_index", -100)
    z = logits.float().masked_fill(ignored[:, None], 0.0)
    loss = F.cross_entropy(z, target.long(), **params)
    if not z_loss:
        return loss
    extra = z_loss * torch.logsumexp(z, -1).square().masked_fill(ignored, 0.0)
    return loss + reduced(extra, ~ignored, reduction)


@known_good
def tiles_of_1000(logits, target, **params):
    """one pass over tiles of 1000 classes"""

    def online(z):
        m, l = online_statistics(z, 1000)
        return (m + torch.log(l))[:, 0]

    return cross_entropy(logits, target, **params, log_sum=online)


@known_good
def base_2(logits, target, **params):
    """exp2 and log2 of logits times log2(e)"""

    def base_2(z):
        scaled = z * math.log2(math.e)
        m = top(scaled)
        return ((m + torch.log2(torch.exp2(scaled - m).sum(-1, keepdim=True))) * math.log(2))[:, 0]

    return cross_entropy(logits, target, **params, log_sum=base_2)


@known_good
def rows_in_reverse(logits, target, **params):
    """losses are added up from the last row to the first, by blocks of 64"""

    def backwards(losses, kept, how):
        if how == "none":
            return losses
        total = sum((part.sum() for part in losses.flip(0).split(64)), losses.new_zeros(()))
        return total / kept.sum() if how == "mean" else total

    return cross_entropy(logits, target, **params, reduced=backwards)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "a row for each block, the losses added up by one more"),
    "counts_all_rows": Kernel("formula", "the mean is over all rows, those that are ignored too"),
    "not_rescaled": Kernel("rescale", "the running sum is not rescaled when the maximum grows"),
    "strides_of_the_target": Kernel(
        "strides", "the targets are read as if they were contiguous", "values: |OutOfBounds"
    ),
    "ignored_row_unwritten": Kernel("unwritten", "a row that is ignored returns before its loss is written"),
}
