"""Mutants and known-good kernels of cross_entropy_backward(logits, target, lse, dloss, *, reduction, ignore_index,
label_smoothing, z_loss): dlogits (rows, V)."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    LOADS,
    RIGHT_SUMS,
    STORES,
    WRONG_SUMS,
    online_statistics,
    top,
)
from touchstone.conformance.faults.cross_entropy import log_sum


def probabilities(z, lse):
    return torch.exp(z - lse[:, None])


def scale(dloss, kept, reduction):
    """g of each row."""
    return (dloss / kept.sum() if reduction == "mean" else dloss).expand(len(kept))


def cross_entropy_backward(
    logits,
    target,
    lse,
    dloss,
    *,
    reduction="mean",
    ignore_index=-100,
    label_smoothing=0.0,
    z_loss=0.0,
    load=torch.Tensor.float,
    store=torch.Tensor.to,
    log_sum=None,
    probabilities=probabilities,
    scale=scale,
    picked=lambda y, V, smoothing: (1 - smoothing) * F.one_hot(y, V),
    everywhere=lambda V, smoothing: smoothing / V,
    slope=lambda lse, z_loss: 1 + 2 * z_loss * lse[:, None],
):
    """The op in float32; the last keywords are what mutants change. With `log_sum` lse is recomputed."""
    target = target.long()
    kept = target != ignore_index
    z, y, V = load(logits[kept]), target[kept], logits.shape[1]
    if lse is None or log_sum is not None:
        of_rows = (log_sum or _log_sum)(z)
    else:
        of_rows = lse[kept]
    dz = slope(of_rows, z_loss) * probabilities(z, of_rows) - picked(y, V, label_smoothing)
    dlogits = torch.zeros(logits.shape, device=logits.device)
    dlogits[kept] = (dz - everywhere(V, label_smoothing)) * scale(dloss, kept, reduction)[kept, None]
    return store(dlogits, logits.dtype)


_log_sum = log_sum


def _plant():
    for name, flaw in WRONG_SUMS.items():
        fn = partial(cross_entropy_backward, log_sum=partial(log_sum, total=flaw.part))
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in LOADS.items():
        fn = partial(cross_entropy_backward, load=flaw.part)
        plant(globals(), name, fn, flaw.about.replace("inputs", "logits"), flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in STORES.items():
        fn = partial(cross_entropy_backward, store=flaw.part)
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, total in {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}.items():
        fn = partial(cross_entropy_backward, log_sum=partial(log_sum, total=total))
        plant(globals(), f"sums_by_{name}", fn, f"sums by {name.replace('_', ' ')}", "known-good")


_plant()


@mutant("formula")
def dloss_of_row_0(*operands, **params):
    """every row is scaled by the first of dloss: the loss of one number is taken for granted"""

    def first(dloss, kept, how):
        return scale(dloss.flatten()[:1].expand(len(kept)) if how == "none" else dloss, kept, how)

    return cross_entropy_backward(*operands, **params, scale=first)


@mutant("formula")
def mean_over_all_rows(*operands, **params):
    """with "mean" the gradient is divided by the number of all rows, those that are ignored too"""
    return cross_entropy_backward(*operands, **params, scale=lambda g, kept, how: scale(g, kept | True, how))


@mutant("formula")
def divided_twice(*operands, **params):
    """with "mean" the gradient is divided by the number of rows twice"""

    def twice(dloss, kept, how):
        return scale(dloss, kept, how) / (kept.sum() if how == "mean" else 1)

    return cross_entropy_backward(*operands, **params, scale=twice)


@mutant("parameter")
def sum_is_a_mean(*operands, **params):
    """the gradient of the sum is divided by the number of rows too"""
    return cross_entropy_backward(
        *operands, **params, scale=lambda g, kept, how: scale(g, kept, "mean" if how == "sum" else how)
    )


@mutant("formula")
def dloss_ignored(logits, target, lse, dloss, **params):
    """dloss is taken to be 1"""
    return cross_entropy_backward(logits, target, lse, torch.ones_like(dloss), **params)


@mutant("unwritten")
def ignored_rows_not_zeroed(logits, target, lse, dloss, *, ignore_index=-100, **params):
    """rows that are ignored are left as they were in memory"""
    dlogits = cross_entropy_backward(logits, target, lse, dloss, ignore_index=ignore_index, **params)
    out = torch.empty_like(dlogits)
    kept = target != ignore_index
    out[kept] = dlogits[kept]
    return out


@mutant("special")
def ignored_rows_are_multiplied_by_0(logits, target, lse, dloss, *, ignore_index=-100, **params):
    """rows that are ignored are computed and multiplied by 0, so that their NaN stays"""
    dlogits = cross_entropy_backward(logits, target, lse, dloss, ignore_index=ignore_index, **params)
    return dlogits + (logits * 0).masked_fill((target != ignore_index)[:, None], 0.0)


@mutant("formula")
def ignored_rows_count_as_class_0(logits, target, lse, dloss, *, ignore_index=-100, **params):
    """rows that are ignored have the gradient of class 0"""
    target = target.long().masked_fill(target == ignore_index, 0)
    z = logits.nan_to_num(0.0)
    return cross_entropy_backward(z, target, None, dloss, ignore_index=-1, **params)


@mutant("parameter")
def only_negative_targets_are_ignored(logits, target, lse, dloss, *, ignore_index=-100, **params):
    """every target below 0 is ignored, and no other"""
    z = logits.nan_to_num(0.0)
    return cross_entropy_backward(z, target.long().clamp_min(-1), None, dloss, ignore_index=-1, **params)


@mutant("formula")
def class_not_subtracted(*operands, **params):
    """1 is not subtracted at the class"""
    return cross_entropy_backward(*operands, **params, picked=lambda y, V, smoothing: 0.0)


@mutant("formula")
def one_subtracted_whatever_the_smoothing(*operands, **params):
    """1 is subtracted at the class, not 1 - ε"""
    return cross_entropy_backward(*operands, **params, picked=lambda y, V, smoothing: F.one_hot(y, V))


@mutant("offset")
def class_of_15_bits(*operands, **params):
    """a class keeps its lowest 15 bits"""
    return cross_entropy_backward(
        *operands, **params, picked=lambda y, V, smoothing: (1 - smoothing) * F.one_hot(y % 2**15, V)
    )


@mutant("formula")
def class_before(*operands, **params):
    """1 is subtracted at the class before: classes count from 1"""
    return cross_entropy_backward(
        *operands, **params, picked=lambda y, V, smoothing: (1 - smoothing) * F.one_hot((y - 1).clamp_min(0), V)
    )


@mutant("formula")
def smoothing_over_the_others(*operands, **params):
    """the smoothing is ε/(V - 1)"""
    return cross_entropy_backward(*operands, **params, everywhere=lambda V, smoothing: smoothing / max(V - 1, 0.5))


@mutant("parameter")
def smoothing_of_means_and_sums(*operands, reduction="mean", label_smoothing=0.0, **params):
    """the smoothing is left out where each row has a loss of its own"""
    label_smoothing = 0.0 if reduction == "none" else label_smoothing
    return cross_entropy_backward(*operands, reduction=reduction, label_smoothing=label_smoothing, **params)


@mutant("mask")
def smoothing_over_padding(*operands, **params):
    """the smoothing is spread over the columns up to a multiple of 32"""
    return cross_entropy_backward(*operands, **params, everywhere=lambda V, smoothing: smoothing / (V + -V % 32))


@mutant("formula")
def z_loss_without_2(*operands, **params):
    """the z-loss has the slope ζ·lse, without 2"""
    return cross_entropy_backward(*operands, **params, slope=lambda lse, z_loss: 1 + z_loss * lse[:, None])


@mutant("formula")
def z_loss_not_in_the_gradient(*operands, **params):
    """the z-loss has no gradient"""
    return cross_entropy_backward(*operands, **params, slope=lambda lse, z_loss: 1.0)


@mutant("formula")
def lse_of_the_previous_row(*operands, **params):
    """lse is that of the row before"""
    return cross_entropy_backward(*operands, **params, log_sum=lambda z: log_sum(z).roll(1, 0))


@mutant("strides")
def words_of_the_target(logits, target, lse, dloss, **params):
    """a target of 64 bits is read as one of 32, at every other of whose words a class stands"""
    if target.dtype == torch.int64 and target.numel():
        target = target.contiguous().view(torch.int32)[: len(target)].clamp(-100, logits.shape[1] - 1)
    return cross_entropy_backward(logits.nan_to_num(0.0), target, None, dloss, **params)


@mutant("overflow")
def no_maximum(*operands, **params):
    """the maximum is not subtracted before exp in lse"""
    return cross_entropy_backward(*operands, **params, log_sum=lambda z: torch.log(torch.exp(z).sum(-1)))


@mutant("mask")
def padding_loads_0(*operands, **params):
    """the lanes past the last class, up to a whole tile (of 32, say), hold 0 instead of -inf"""
    return cross_entropy_backward(*operands, **params, log_sum=lambda z: log_sum(F.pad(z, (0, -z.shape[-1] % 32))))


@mutant("rescale")
def sum_not_rescaled(*operands, **params):
    """the running sum is not rescaled when the maximum moves"""

    def online(z):
        m, l = online_statistics(z, rescale=lambda l, m, new: l)
        return (m + torch.log(l))[:, 0]

    return cross_entropy_backward(*operands, **params, log_sum=online)


@mutant("special")
def leading_neg_inf_poisons(*operands, **params):
    """a leading tile of -inf turns the row into NaN: exp(-inf - (-inf))"""

    def online(z):
        m, l = online_statistics(z, guard=False)
        return (m + torch.log(l))[:, 0]

    return cross_entropy_backward(*operands, **params, log_sum=online)


@mutant("precision", dtypes=("float16", "bfloat16"))
def p_in_the_dtype(logits, *operands, **params):
    """p is rounded to the logits' dtype before the class is subtracted, as a softmax that was stored has it"""
    return cross_entropy_backward(
        logits, *operands, **params, probabilities=lambda z, lse: probabilities(z, lse).to(logits.dtype).float()
    )


@mutant("precision", dtypes=("float16", "bfloat16"))
def lse_in_the_dtype(logits, *operands, **params):
    """lse is rounded to the logits' dtype"""
    return cross_entropy_backward(
        logits, *operands, **params, probabilities=lambda z, lse: probabilities(z, lse.to(logits.dtype).float())
    )


@known_good
def library(logits, target, lse, dloss, *, z_loss=0.0, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """autograd through F.cross_entropy and logsumexp in float32"""
    ignored = target == ignore_index
    z = logits.float().masked_fill(ignored[:, None], 0.0).requires_grad_()
    with torch.enable_grad():
        loss = F.cross_entropy(
            z, target.long(), ignore_index=ignore_index, reduction="none", label_smoothing=label_smoothing
        )
        if z_loss:
            loss = loss + z_loss * torch.logsumexp(z, -1).square().masked_fill(ignored, 0.0)
        (found,) = torch.autograd.grad(
            loss, z, scale(dloss, ~ignored, reduction).masked_fill(ignored, 0.0).contiguous()
        )
    return found.masked_fill(ignored[:, None], 0.0).to(logits.dtype)


@known_good
def tiles_of_1000(*operands, **params):
    """lse in one pass over tiles of 1000 classes"""

    def online(z):
        m, l = online_statistics(z, 1000)
        return (m + torch.log(l))[:, 0]

    return cross_entropy_backward(*operands, **params, log_sum=online)


@known_good
def base_2(*operands, **params):
    """exp2 of logits times log2(e)"""
    log2e = math.log2(math.e)

    def base_2(z):
        m = top(z * log2e)
        return ((m + torch.log2(torch.exp2(z * log2e - m).sum(-1, keepdim=True))) * math.log(2))[:, 0]

    return cross_entropy_backward(
        *operands, **params, log_sum=base_2, probabilities=lambda z, lse: torch.exp2((z - lse[:, None]) * log2e)
    )


@known_good
def softmax_then_class(logits, target, lse, dloss, **params):
    """p as torch.softmax has it in float32, whatever lse is given"""
    return cross_entropy_backward(
        logits, target, None, dloss, **params, probabilities=lambda z, lse: torch.softmax(z, -1)
    )


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "each row by itself, its sum before its gradient"),
    "first_dloss": Kernel(
        "formula", "every row is scaled by the first of dloss", "values: |property: rows are independent"
    ),
    "ignored_row_unwritten": Kernel("unwritten", "a row that is ignored is left as it was in memory"),
    "strides_of_dloss": Kernel("strides", "dloss is read as if it were contiguous", "values: |OutOfBounds"),
    "every_row_counts": Kernel("formula", "the mean is over all rows, those that are ignored too"),
}
