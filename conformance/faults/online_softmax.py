"""Mutants and known-good kernels of online_softmax(x): y (rows, cols) and lse (rows,) in float32, from one pass over
x."""

import functools
import math
from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
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

_with_wide_lse = partial(in_float32, wide=(1,))


def _online_softmax(x, *, tile=16, **changed):
    return finish(x, *online_statistics(x, tile, **changed))


def _two_pass(total):
    def online_softmax(x):
        m = top(x)
        shift = torch.where(torch.isneginf(m), 0.0, m)
        return finish(x, m if x.shape[-1] else m - math.inf, total(torch.exp(x - shift)))

    return online_softmax


plant_flaws(globals(), WRONG_SUMS, _two_pass, wide=(1,))
plant_loads_and_stores(globals(), partial(_online_softmax), wide=(1,))
plant_sums(globals(), {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}, _two_pass, wide=(1,))


def _right_y(lse):
    """`lse(x, right)`, a wrong lse of (rows,), beside the right y."""

    @functools.wraps(lse)
    def online_softmax(x):
        return softmax(x), lse(x, torch.logsumexp(x, -1))

    del online_softmax.__wrapped__  # its signature is the op's, not that of `lse`
    return _with_wide_lse(online_softmax)


@mutant("special", dtypes=("float32", "bfloat16"))
@_with_wide_lse
def maximum_starts_at_1e30(x):
    """the running maximum starts at a finite number (-1e30, say) instead of -inf"""
    return _online_softmax(x, start=-1e30)


@mutant("special")
@_right_y
def nan_beside_neg_inf_has_lse_neg_inf(x, right):
    """the maximum skips NaN, and lse is -inf wherever it is"""
    return torch.where(torch.where(x.isnan(), -math.inf, x).isneginf().all(-1), -math.inf, right)


@mutant("special")
@_right_y
def pos_inf_has_lse_nan(x, right):
    """lse is NaN where a row has +inf: inf + log(NaN)"""
    return torch.where(right.isposinf(), math.nan, right)


@mutant("rescale")
@_with_wide_lse
def sum_not_rescaled(x):
    """the running sum is not rescaled when the maximum moves"""
    return _online_softmax(x, rescale=lambda l, m, new: l)


@mutant("rescale")
@_with_wide_lse
def rescaled_the_wrong_way(x):
    """the running sum is multiplied by exp(new - old) instead of exp(old - new)"""
    return _online_softmax(x, rescale=lambda l, m, new: torch.where(l == 0, l, l * torch.exp(new - m)))


@mutant("rescale")
@_with_wide_lse
def new_tile_not_rescaled(x):
    """a tile is summed relative to its own maximum and added as it is"""
    m, l = x.new_full((x.shape[0], 1), -math.inf), x.new_zeros((x.shape[0], 1))
    for part in x.split(16, -1) if x.shape[-1] else ():
        own = top(part)
        new = torch.maximum(m, own)
        l = l * torch.exp(m - torch.where(torch.isneginf(new), 0.0, new))
        l = l + row_sum(torch.exp(part - torch.where(torch.isneginf(own), 0.0, own)))
        m = new
    return finish(x, m, l)


@mutant("rescale")
@_with_wide_lse
def partials_merged_without_rescaling(x):
    """the sums of two halves of a row are added without rescaling them to the common maximum"""
    halves = [online_statistics(part) for part in x.tensor_split(2, -1)]
    m = torch.maximum(*(m for m, _ in halves))
    return finish(x, m, sum(l for _, l in halves))


@mutant("overflow")
@_with_wide_lse
def maximum_of_the_first_tile(x):
    """the maximum is that of the first 16 columns"""
    first = x.new_full((x.shape[0], 1), -math.inf) if not x.shape[-1] else top(x[:, :16])
    return _online_softmax(x, tile=max(x.shape[-1], 1), top=lambda part: first)


@mutant("overflow")
@_with_wide_lse
def maximum_of_row_0(x):
    """every row subtracts the maximum of row 0"""
    m = top(x)[:1].expand(x.shape[0], 1)
    return finish(x, m, row_sum(torch.exp(x - m)))


@mutant("formula")
@_with_wide_lse
def statistics_of_the_previous_row(x):
    """maximum and sum are those of the row before"""
    m, l = online_statistics(x)
    return finish(x, m.roll(1, 0), l.roll(1, 0))


@mutant("overflow")
@_with_wide_lse
def maximum_starts_at_0(x):
    """the running maximum starts at 0 instead of -inf"""
    return _online_softmax(x, start=0.0)


@mutant("special")
@_with_wide_lse
def leading_neg_inf_poisons(x):
    """a leading tile of -inf turns the row into NaN: exp(-inf - (-inf))"""
    return _online_softmax(x, guard=False)


@mutant("special")
@_with_wide_lse
def nan_swallowed(x):
    """the maximum skips NaN as fmaxf does, and exp(NaN) is masked to 0"""
    return _online_softmax(torch.where(x.isnan(), -math.inf, x))


@mutant("special")
@_with_wide_lse
def sentinel_1e30(x):
    """-inf is replaced by -1e30, so that a row of it is uniform"""
    return _online_softmax(x.clamp_min(-1e30))


@mutant("special")
@_with_wide_lse
def row_of_neg_inf_is_zero(x):
    """y of a row of -inf is 0 instead of NaN"""
    y, lse = _online_softmax(x)
    return y.masked_fill(torch.isneginf(lse)[:, None], 0.0), lse


@mutant("mask")
@_with_wide_lse
def padding_loads_0(x):
    """the lanes past the last column, up to a multiple of 16, hold 0 instead of -inf"""
    m, l = online_statistics(F.pad(x, (0, -x.shape[-1] % 16)))
    return finish(x, m, l)


@mutant("precision")
@_with_wide_lse
def running_sum_in_fp16(x):
    """the sum is kept in float16 from tile to tile"""
    return _online_softmax(x, running=torch.float16)


@mutant("precision")
@_with_wide_lse
def running_sum_in_bf16(x):
    """the sum is kept in bfloat16 from tile to tile"""
    return _online_softmax(x, running=torch.bfloat16)


@mutant("scale")
@_right_y
def lse_to_base_2(x, lse):
    """lse is the logarithm to base 2"""
    return lse / math.log(2)


@mutant("formula")
@_right_y
def lse_without_the_maximum(x, lse):
    """lse is the logarithm of the sum, without the maximum"""
    return lse - top(x)[:, 0]


@mutant("formula")
@_right_y
def lse_is_the_maximum(x, lse):
    """lse is the maximum alone"""
    return top(x)[:, 0] if x.shape[-1] else lse


@mutant("formula")
@_right_y
def lse_is_the_sum(x, lse):
    """lse is the sum itself, not its logarithm"""
    return lse.exp()


@mutant("formula")
@_right_y
def lse_negated(x, lse):
    """lse has the wrong sign"""
    return -lse


@mutant("precision")
@_right_y
def lse_through_fp16(x, lse):
    """lse passes through float16"""
    return lse.half().float()


@mutant("precision")
@_right_y
def lse_through_bf16(x, lse):
    """lse passes through bfloat16"""
    return lse.bfloat16().float()


@mutant("special")
@_right_y
def lse_of_neg_inf_is_nan(x, lse):
    """lse of a row of -inf is NaN"""
    return torch.where(lse.isneginf(), math.nan, lse)


@mutant("special")
@_right_y
def lse_of_neg_inf_is_finite(x, lse):
    """lse of a row of -inf is -1e30"""
    return lse.clamp_min(-1e30)


@mutant("special")
@_right_y
def lse_of_pos_inf_is_nan(x, lse):
    """lse of a row with +inf is NaN"""
    return torch.where(lse.isposinf(), math.nan, lse)


@mutant("special")
@_right_y
def lse_swallows_nan(x, lse):
    """lse leaves out NaN"""
    return torch.logsumexp(torch.where(x.isnan(), -math.inf, x), -1)


@mutant("tail")
@_right_y
def lse_loses_the_last_column(x, lse):
    """lse leaves out the last column"""
    return torch.logsumexp(x[:, :-1], -1)


@mutant("tail")
@_right_y
def lse_of_the_previous_row(x, lse):
    """lse is that of the row before"""
    return lse.roll(1, 0)


@known_good
def library(x):
    """torch.softmax in the dtype of x, torch.logsumexp in float32"""
    return torch.softmax(x, -1).contiguous(), torch.logsumexp(x.float(), -1)


@known_good
@_with_wide_lse
def tiles_of_1000(x):
    """one pass over tiles of 1000 columns"""
    return _online_softmax(x, tile=1000)


@known_good
@_with_wide_lse
def small_tiles(x):
    """one pass, column by column where there are fewer than 100 and else by tiles of 7"""
    return _online_softmax(x, tile=1 if x.shape[-1] < 100 else 7)


@known_good
@_with_wide_lse
def merged_halves(x):
    """the statistics of halves of a row, merged as a tree"""
    leaf = max(4, x.shape[-1] // 64)

    def statistics(part):
        cols = part.shape[-1]
        if cols <= leaf:
            return online_statistics(part, leaf)
        (m1, l1), (m2, l2) = statistics(part[:, : cols // 2]), statistics(part[:, cols // 2 :])
        m = torch.maximum(m1, m2)
        base = torch.where(torch.isneginf(m), 0.0, m)
        return m, l1 * torch.exp(m1 - base) + l2 * torch.exp(m2 - base)

    return finish(x, *statistics(x))


@known_good
@_with_wide_lse
def base_2_throughout(x):
    """maximum and sum of logits times log2(e), in exp2"""
    scaled = x * math.log2(math.e)
    m = top(scaled) if x.shape[-1] else x.new_full((x.shape[0], 1), -math.inf)
    shift = torch.where(torch.isneginf(m), 0.0, m)
    l = row_sum(torch.exp2(scaled - shift))
    lse = torch.where(torch.isposinf(m), m, (m + torch.log2(l)) * math.log(2))
    return torch.exp2(scaled - m) / l, lse[:, 0]


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "block": Kernel("known-good", "a few blocks walk over the rows and merge pairs of maximum and sum"),
    "merge_not_rescaled": Kernel("rescale", "lanes add their sums as they are, each relative to its own maximum"),
    "maximum_from_zero": Kernel("mask", "the running maximum starts at 0 instead of -inf"),
    "infinite_shift": Kernel("special", "exp(-inf - (-inf)) makes a row that begins with -inf NaN"),
    "lanes_left_out": Kernel(
        "race", "lanes without a column skip the shuffles, whose mask names all 32", "InactiveLanes"
    ),
    "no_barrier_before_result": Kernel(
        "race",
        "no barrier between the thread that writes the row's maximum and sum to shared memory and those that read them",
        "UninitialisedShared",
    ),
}
