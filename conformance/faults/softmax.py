"""Mutants and known-good kernels of softmax(x): y (rows, cols)."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._rows import (
    BF16,
    COMPENSATED_SUM,
    F16,
    F32,
    RIGHT_SUMS,
    WRONG_SUMS,
    finish,
    in_float32,
    online_statistics,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    row_sum,
    softmax,
    top,
)

_SUMS = {**WRONG_SUMS, "fp16_sum": WRONG_SUMS["fp16_sum"]._replace(dtypes=F32 + F16)}  # 10 bits are enough for bfloat16
plant_flaws(globals(), _SUMS, lambda total: partial(softmax, total=total))
plant_loads_and_stores(globals(), partial(softmax))
plant_sums(globals(), {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}, lambda total: partial(softmax, total=total))


@mutant("overflow")
@in_float32
def no_maximum(x):
    """the maximum is not subtracted before exp"""
    return softmax(x, top=torch.zeros_like)


@mutant("overflow")
@in_float32
def maximum_of_the_first_tile(x):
    """the maximum is that of the first 64 columns"""
    return softmax(x, top=lambda x: top(x[:, :64]))


@mutant("overflow")
@in_float32
def maximum_of_row_0(x):
    """every row subtracts the maximum of row 0"""
    return softmax(x, top=lambda x: top(x)[:1])


@mutant("overflow")
@in_float32
def maximum_of_the_previous_row(x):
    """every row subtracts the maximum of the one before"""
    return softmax(x, top=lambda x: top(x).roll(1, 0))


@mutant("overflow")
@in_float32
def maximum_starts_at_0(x):
    """the running maximum starts at 0 instead of -inf"""
    return softmax(x, top=lambda x: top(x).clamp_min(0))


@mutant("formula")
@in_float32
def sum_of_the_previous_row(x):
    """every row is divided by the sum of the one before"""
    return softmax(x, total=lambda e: row_sum(e).roll(1, 0))


@mutant("mask")
@in_float32
def padding_loads_0(x):
    """the lanes past the last column, up to a whole tile (of 32, say), hold 0 instead of -inf"""
    return softmax(F.pad(x, (0, -x.shape[-1] % 32)))[:, : x.shape[-1]].clone(memory_format=torch.contiguous_format)


@mutant("mask")
@in_float32
def padding_counts_as_exp_0(x):
    """the lanes past the last column, up to a whole tile (of 32, say), add 1 each to the sum"""
    return softmax(x, total=lambda e: row_sum(e) + -x.shape[-1] % 32)


@mutant("rescale")
@in_float32
def sum_not_rescaled(x):
    """the running sum is not rescaled when the maximum moves"""
    return finish(x, *online_statistics(x, rescale=lambda l, m, new: l))[0]


@mutant("special")
@in_float32
def leading_neg_inf_poisons(x):
    """a leading tile of -inf turns the row into NaN: exp(-inf - (-inf))"""
    return finish(x, *online_statistics(x, guard=False))[0]


@mutant("special")
@in_float32
def sentinel_1e30(x):
    """-inf is replaced by -1e30, so that a row of it is uniform"""
    return softmax(x.clamp_min(-1e30))


@mutant("special")
@in_float32
def sentinel_1e4(x):
    """-inf is replaced by -1e4, so that a row of it is uniform"""
    return softmax(torch.where(torch.isneginf(x), -1e4, x))


@mutant("special", dtypes=F32 + BF16)
@in_float32
def maximum_starts_at_1e30(x):
    """the running maximum starts at a finite number (-1e30, say) instead of -inf"""
    return softmax(x, top=lambda x: top(x).clamp_min(-1e30))


@mutant("special")
@in_float32
def maximum_starts_at_5e4(x):
    """the running maximum starts at -5e4 instead of -inf"""
    return softmax(x, top=lambda x: top(x).clamp_min(-5e4))


@mutant("special")
@in_float32
def nan_beside_neg_inf_gives_zeros(x):
    """a row whose maximum, which skips NaN, is -inf gives zeros where it has a NaN"""
    skipped = torch.where(x.isnan(), -math.inf, x)
    nothing = skipped.isneginf().all(-1, keepdim=True) & x.isnan().any(-1, keepdim=True)
    return softmax(x).masked_fill(nothing, 0.0)


@mutant("special")
@in_float32
def row_of_neg_inf_is_zero(x):
    """a row of -inf gives zeros instead of NaN"""
    return softmax(x).masked_fill(x.isneginf().all(-1, keepdim=True), 0.0)


@mutant("special")
@in_float32
def nan_swallowed(x):
    """the maximum skips NaN as fmaxf does, and exp(NaN) is masked to 0"""
    return softmax(torch.where(x.isnan(), -math.inf, x))


@mutant("special")
@in_float32
def nan_results_are_zero(x):
    """NaN results are stored as 0"""
    return softmax(x).nan_to_num(0.0)


@mutant("special")
@in_float32
def pos_inf_takes_all(x):
    """a row with +inf gives 1 there and 0 elsewhere instead of NaN"""
    return torch.where(x.isposinf().any(-1, keepdim=True), x.isposinf().float(), softmax(x))


@mutant("axis")
@in_float32
def over_rows(x):
    """it is taken over rows instead of columns"""
    return softmax(x.T).T.contiguous() if x.numel() else x.clone()


@mutant("eps", dtypes=F32)
@in_float32
def denominator_plus_1e_6(x):
    """1e-6 is added to the denominator"""
    return softmax(x, total=lambda e: row_sum(e) + 1e-6)


@mutant("special", dtypes=F32 + BF16)
@in_float32
def exponent_clamped(x):
    """the exponent is clamped at -20"""
    return softmax(x, exp=lambda t: t.clamp_min(-20).exp())


@mutant("precision")
@in_float32
def exp_in_bf16(x):
    """exp is computed in bfloat16"""
    return softmax(x, exp=lambda t: t.bfloat16().exp().float())


@mutant("scale")
@in_float32
def base_2(x):
    """2 takes the place of e: exp2 without the factor log2(e)"""
    return softmax(x, exp=torch.exp2)


@mutant("formula")
@in_float32
def logarithm(x):
    """it is the logarithm of the answer"""
    return torch.log_softmax(x, -1)


@known_good
def library(x):
    """torch.softmax in the dtype of x"""
    return torch.softmax(x, -1).contiguous()


@known_good
@in_float32
def base_2_throughout(x):
    """exp2 of logits times log2(e), and a product with the reciprocal of the sum"""
    scaled = x * math.log2(math.e)
    e = torch.exp2(scaled - top(scaled))
    return e * (1 / row_sum(e))


@known_good
@in_float32
def online_tiles_of_16(x):
    """one pass with a running maximum and sum over tiles of 16 columns"""
    return finish(x, *online_statistics(x))[0]


@known_good
@in_float32
def online_tiles_of_1000(x):
    """one pass with a running maximum and sum over tiles of 1000 columns"""
    return finish(x, *online_statistics(x, 1000))[0]


@known_good
def exp_of_the_logarithm(x):
    """exp of log_softmax, in float64"""
    return torch.exp(torch.log_softmax(x.double(), -1)).to(x.dtype).contiguous()


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "rows": Kernel("known-good", "a few blocks walk over the rows and reduce by shuffles"),
    "no_barrier_in_reduction": Kernel(
        "race", "no barrier between the warps' partial results and their reading", "UninitialisedShared"
    ),
    "reduction_buffer_reused": Kernel(
        "race",
        "no barrier after a reduction: the next one overwrites partial results that slower warps still read",
        "RaceCondition",
    ),
    "partials_of_absent_warps": Kernel(
        "unwritten",
        "the reduction reads 32 partial results whatever the number of warps: those of absent ones were never written",
        "UninitialisedShared",
    ),
    "ragged_warp": Kernel(
        "race",
        "the block is no multiple of 32 threads: the last warp shuffles with lanes that do not exist",
        "InactiveLanes",
    ),
    "column_stride_ignored": Kernel("strides", "the stride between columns is taken to be 1", "values: |OutOfBounds"),
    "block_no_power_of_two": Kernel(
        "shapes", "a block of 96 threads is reduced by halves, 96, 48, ..., 3, 1: a third of the sum is lost"
    ),
}
