"""Mutants and known-good kernels of merge_states(o, lse): o (P, rows, D) -> (rows, D), lse (P, rows) -> (rows,) in
float32."""

import math
from functools import partial

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._rows import LOADS, STORES


def weights_of(lse, exp=torch.exp):
    """The weights of the parts, which their largest has as 1, and the lse of all."""
    m = lse.amax(0) if len(lse) else lse.new_full(lse.shape[1:], -math.inf)
    shift = torch.where(m.isneginf(), 0.0, m)  # no part has a key
    weights = exp(lse - shift)
    return weights, shift + torch.log(weights.sum(0))


def normalised(total, weights):
    l = weights.sum(0)
    return total / torch.where(l == 0, 1.0, l)[:, None]


def merge_states(
    o, lse, *, load=torch.Tensor.float, store=torch.Tensor.to, weigh=weights_of, normalise=normalised, pick=lambda o: o
):
    """The op in float32; the last keywords are what mutants change."""
    weights, merged = weigh(lse)
    total = (weights[..., None] * pick(load(o))).sum(0)
    return store(normalise(total, weights), o.dtype), merged


def _plant():
    for name, flaw in LOADS.items():
        fn = partial(merge_states, load=flaw.part)
        plant(globals(), name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name in ("result_through_fp16", "result_through_bf16", "result_truncated"):
        flaw = STORES[name]
        plant(globals(), name, partial(merge_states, store=flaw.part), flaw.about, flaw.kind, dtypes=flaw.dtypes)


_plant()


def running(o, lse, kept=lambda old, new: torch.exp(old - new), shift=lambda x: torch.where(x.isneginf(), 0.0, x)):
    """One part after another, each merged with what those before have given, by weights exp(old - new)."""
    merged = torch.zeros(o.shape[1:], device=o.device)
    of_all = torch.full(lse.shape[1:], -math.inf, device=o.device)
    for part, of_part in zip(o.float(), lse, strict=True):
        m = torch.maximum(of_all, of_part)
        new = m + torch.log(torch.exp(of_all - shift(m)) + torch.exp(of_part - shift(m)))
        a, b = kept(of_all, shift(new)), torch.exp(of_part - shift(new))
        merged, of_all = a[:, None] * merged + b[:, None] * part, new
    return merged.to(o.dtype), of_all


@mutant("special")
def empty_parts_give_nan(o, lse):
    """where no part has a key, exp(-inf - (-inf)) is NaN"""

    def weigh(lse):
        m = lse.amax(0) if len(lse) else lse.new_full(lse.shape[1:], -math.inf)
        weights = torch.exp(lse - m)
        return weights, m + torch.log(weights.sum(0))

    return merge_states(o, lse, weigh=weigh)


@mutant("special")
def two_empty_parts_give_nan(o, lse):
    """one part after another, where two without keys give NaN that stays"""
    return running(o, lse, shift=lambda x: x)


@mutant("special")
def sentinel(o, lse):
    """-1e30 stands for -inf: a row without keys is the mean of its parts, and its lse finite"""
    return merge_states(o, lse.clamp_min(-1e30))


@mutant("special")
def maximum_starts_at_1e30(o, lse):
    """the largest lse is looked for from -1e30 on: below, every weight is 0"""

    def weigh(lse):
        m = lse.amax(0).clamp_min(-1e30) if len(lse) else lse.new_full(lse.shape[1:], -1e30)
        weights = torch.exp(lse - m)
        return weights, m + torch.log(weights.sum(0))

    return merge_states(o, lse, weigh=weigh)


@mutant("special")
def no_key_gives_a_finite_lse(o, lse):
    """lse of a row without keys is -1e30"""
    merged, of_all = merge_states(o, lse)
    return merged, of_all.clamp_min(-1e30)


@mutant("special", dtypes=("float32",))
def one_part_is_passed_on(o, lse):
    """a single part is the answer, though o of one without keys may be any number"""
    merged, of_all = merge_states(o, lse)
    return (o[0].clone() if len(o) == 1 else merged), of_all


@mutant("special")
def empty_part_weighs_one(o, lse):
    """a part without keys has the weight of an lse of 0"""
    return merge_states(o, torch.where(lse.isneginf(), 0.0, lse))


@mutant("special")
def nan_weighs_nothing(o, lse):
    """a part whose lse is NaN counts nothing"""
    return merge_states(o, lse.nan_to_num(-math.inf, neginf=-math.inf))


@mutant("scale")
def base_2(o, lse):
    """lse is taken for a logarithm to base 2"""
    merged, of_all = merge_states(o, lse * math.log(2))
    return merged, of_all / math.log(2)


@mutant("scale")
def base_2_without_log2e(o, lse):
    """exp2 takes the place of exp, and its argument is not multiplied by log2(e)"""
    return merge_states(o, lse, weigh=partial(weights_of, exp=torch.exp2))


@mutant("scale")
def lse_to_base_2(o, lse):
    """the merged lse is the logarithm to base 2"""
    merged, of_all = merge_states(o, lse)
    return merged, of_all / math.log(2)


@mutant("scale")
def not_normalised(o, lse):
    """weights are relative to the largest, and not divided by their sum"""
    return merge_states(o, lse, normalise=lambda total, weights: total)


@mutant("scale")
def averaged(o, lse):
    """every part has the same weight"""
    _, of_all = merge_states(o, lse)
    return merge_states(o, torch.zeros_like(lse))[0], of_all


@mutant("formula")
def lse_is_the_largest(o, lse):
    """the merged lse is the largest of the parts'"""
    merged, _ = merge_states(o, lse)
    return merged, lse.amax(0) if len(lse) else lse.new_full(lse.shape[1:], -math.inf)


@mutant("formula")
def lse_is_the_last(o, lse):
    """the merged lse is that of the last part"""
    merged, _ = merge_states(o, lse)
    return merged, lse[-1].clone() if len(lse) else lse.new_full(lse.shape[1:], -math.inf)


@mutant("formula")
def weights_not_exponentials(o, lse):
    """a part's weight is the sigmoid of its distance from the largest"""

    def weigh(lse):
        _, merged = weights_of(lse)
        m = torch.where(merged.isneginf(), 0.0, merged)
        return torch.sigmoid(lse - m), merged

    return merge_states(o, lse, weigh=weigh)


@mutant("formula")
def sign_of_lse(o, lse):
    """the parts with the smallest lse weigh most"""
    _, of_all = merge_states(o, lse)
    return merge_states(o, torch.where(lse.isneginf(), lse, -lse))[0], of_all


@mutant("accumulator")
def first_part_twice(o, lse):
    """o of the first part counts twice"""
    return merge_states(o, lse, pick=lambda o: torch.cat([2 * o[:1], o[1:]]))


@mutant("accumulator")
def last_part_overwrites(o, lse):
    """the last part with a key stands for all"""
    merged, of_all = merge_states(o, lse)
    if len(o):
        merged = torch.where(lse[-1].isneginf()[:, None], merged, o[-1])
    return merged, of_all


@mutant("tail")
def last_part_lost(o, lse):
    """the last part is left out"""
    return merge_states(o[:-1], lse[:-1])


@mutant("tail")
def parts_beyond_32_lost(o, lse):
    """parts beyond the 32 that a warp's lanes hold are lost"""
    return merge_states(o[:32], lse[:32])


@mutant("tail")
def parts_beyond_1024_lost(o, lse):
    """parts beyond the 1024 that a block's threads hold are lost"""
    return merge_states(o[:1024], lse[:1024])


@mutant("tail")
def pairs_only(o, lse):
    """of an odd number of parts the last is left out"""
    even = len(o) // 2 * 2 if len(o) > 1 else len(o)
    return merge_states(o[:even], lse[:even])


@mutant("axis")
def weights_of_the_next_row(o, lse):
    """a row has the weights of the row after it"""
    _, of_all = merge_states(o, lse)
    return merge_states(o, lse.roll(-1, 1))[0], of_all


@mutant("axis")
def parts_and_rows_swapped(o, lse):
    """lse is stored with rows first, but read with parts first"""
    return merge_states(o, lse.contiguous().view(lse.shape[1], lse.shape[0]).t())


@mutant("rescale")
def not_rescaled(o, lse):
    """one part after another, where what was before is not rescaled"""
    return running(o, lse, kept=lambda old, new: torch.where(old.isneginf(), 0.0, 1.0))


@mutant("overflow")
def no_maximum(o, lse):
    """the largest lse is not subtracted before exp"""

    def weigh(lse):
        weights = torch.exp(lse)
        return weights, torch.log(weights.sum(0))

    return merge_states(o, lse, weigh=weigh)


@mutant("overflow")
def largest_of_the_first_part(o, lse):
    """the lse of the first part is subtracted, not the largest"""

    def weigh(lse):
        m = lse[0] if len(lse) else lse.new_full(lse.shape[1:], -math.inf)
        weights = torch.exp(lse - torch.where(m.isneginf(), 0.0, m))
        return weights, torch.where(m.isneginf(), 0.0, m) + torch.log(weights.sum(0))

    return merge_states(o, lse, weigh=weigh)


@mutant("precision", dtypes=("float32", "float16"))
def weights_in_bf16(o, lse):
    """weights are kept in bfloat16"""

    def weigh(lse):
        weights, merged = weights_of(lse)
        return weights.bfloat16().float(), merged

    return merge_states(o, lse, weigh=weigh)


@mutant("precision")
def lse_in_fp16(o, lse):
    """the lse of parts is kept in float16"""
    return merge_states(o, lse.half().float())


@mutant("precision", dtypes=("float16", "bfloat16"))
def accumulated_in_the_dtype(o, lse):
    """parts are added up in the dtype of o, one after another"""
    weights, merged = weights_of(lse)
    total = torch.zeros(o.shape[1:], dtype=o.dtype, device=o.device)
    for weight, part in zip(weights, o, strict=True):
        total = total + (weight[:, None] * part.float()).to(o.dtype)
    return normalised(total.float(), weights).to(o.dtype), merged


@known_good
def by_the_largest(o, lse):
    """weights relative to the largest part's, divided by their sum at the end"""
    return merge_states(o, lse)


@known_good
def by_the_merged_lse(o, lse):
    """weights exp(lse_p - lse), which need no division"""
    _, merged = weights_of(lse)
    weights = torch.exp(lse - torch.where(merged.isneginf(), 0.0, merged))
    return (weights[..., None] * o.float()).sum(0).to(o.dtype), merged


@known_good
def one_after_another(o, lse):
    """each part merged with what was before, by weights exp(old - new)"""
    return running(o, lse)


@known_good
def one_after_another_by_shares(o, lse):
    """each part merged with what was before: old + share·(o - old), the share 1 / (1 + exp(old - its own))"""
    merged = torch.zeros(o.shape[1:], device=o.device)
    of_all = torch.full(lse.shape[1:], -math.inf, device=o.device)
    for part, of_part in zip(o.float(), lse, strict=True):
        share = torch.where(of_part.isneginf(), 0.0, 1 / (1 + torch.exp(of_all - of_part)))
        merged = merged + share[:, None] * (part - merged)
        of_all = torch.logaddexp(of_all, of_part)
    return merged.to(o.dtype), of_all


@known_good
def from_the_last(o, lse):
    """each part merged with what those after it have given"""
    return running(o.flip(0), lse.flip(0))


@known_good
def two_by_two(o, lse):
    """a tree: neighbours are merged, then what they give"""
    o, dtype = o.float(), o.dtype
    while len(o) > 1:
        whole = len(o) // 2 * 2
        pairs = [running(o[i : i + 2], lse[i : i + 2]) for i in range(0, whole, 2)]
        pairs += [(o[i], lse[i]) for i in range(whole, len(o))]
        o, lse = (torch.stack(side) for side in zip(*pairs, strict=True))
    merged, of_all = running(o, lse)
    return merged.to(dtype), of_all


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "running": Kernel("known-good", "a part after the other, with a running maximum and sum"),
    "not_rescaled": Kernel("rescale", "what was before is not rescaled when the maximum moves"),
    "base_2": Kernel("scale", "weights are powers of two"),
    "last_part_lost": Kernel("tail", "the last part is left out"),
    "row_before": Kernel("axis", "a row has the lse of the row before it"),
    "empty_parts": Kernel("special", "where no part has a key, exp(-inf - (-inf)) is NaN"),
    "offset_int32": Kernel("offset", "part times the stride of parts is a product of 32 bits", "OutOfBounds"),
    "part_stride": Kernel(
        "strides", "a part begins rows·(stride of a row) after the one before", "OutOfBounds|values: "
    ),
}
