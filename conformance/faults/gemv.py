"""Mutants and known-good kernels of gemv(a, x): (M, K), (K,) -> (M,)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._multilinear import plant_multilinear
from touchstone.conformance.faults._rows import F16, F32, HALF, in_float32, in_sequence

EQUIVALENT = dict.fromkeys(("rows_beyond_a_grid", "rows_of_16_bits"), "a vector has one axis, and that is a row")

plant_multilinear(globals(), lambda total: lambda a, x: total(a * x)[:, 0])


@mutant("axis")
@in_float32
def second_of_two_rows(a, x):
    """with two rows a warp, the second half of the warp reads the first's row"""
    return (a[torch.arange(len(a)) // 2 * 2] @ x).contiguous()


@mutant("tail")
@in_float32
def last_odd_row_lost(a, x):
    """with two rows a warp, the last of an odd number is not written"""
    y = a @ x
    y[len(a) // 2 * 2 :] = 0
    return y


@mutant("tail")
@in_float32
def vector_tail_lost(a, x):
    """what exceeds a multiple of 4 columns, the length of a vector, is left out"""
    whole = a.shape[1] // 4 * 4
    return a[:, :whole] @ x[:whole]


@mutant("bounds")
@in_float32
def vector_tail_of_the_next_row(a, x):
    """the last vector of a row reads on into the next row, with the last element of x"""
    extra = -a.shape[1] % 4
    if not a.numel():
        return a @ x
    following = F.pad(a.flatten(), (0, a.shape[1] + 4))[a.shape[1] :].as_strided((len(a), extra), (a.shape[1], 1))
    return a @ x + following.sum(1) * x[-1]


@mutant("unwritten")
@in_float32
def partials_unwritten(a, x):
    """of four partial sums a row, those that have no columns are not written and hold 1"""
    parts = -(-a.shape[1] // 32)
    return a @ x + max(4 - parts, 0)


@mutant("accumulator")
@in_float32
def last_part_lost(a, x):
    """the last of four partial sums of a row is not added"""
    part = max(-(-a.shape[1] // 4), 1)
    return a[:, : 3 * part] @ x[: 3 * part]


@mutant("tail")
@in_float32
def remainder_of_split_k(a, x):
    """a row is cut into four parts of K // 4 columns, so that up to three columns are left out"""
    whole = a.shape[1] // 4 * 4
    return a[:, :whole] @ x[:whole] if a.shape[1] > 16 else a @ x


@mutant("axis")
@in_float32
def column_major(a, x):
    """the elements of a are taken in column-major order"""
    return a.t().reshape(a.shape) @ x


@mutant("weights")
@in_float32
def first_of_x(a, x):
    """every column is multiplied by the first element of x"""
    return a.sum(1) * x[0] if len(x) else a @ x


@mutant("race")
@in_float32
def warps_per_row(a, x):
    """two of four warps of a row store the sum of their own columns: the last one wins"""
    return F.pad(a * x, (0, -a.shape[1] % 64)).unflatten(1, (-1, 64))[:, :, 32:].sum((1, 2))


@mutant("precision", dtypes=HALF)
def products_rounded(a, x):
    """each product is rounded to the dtype of a before it is added"""
    return (a * x).float().sum(1).to(a.dtype)


@mutant("precision", dtypes=HALF)
def partial_sums_rounded(a, x):
    """four partial sums of a row are rounded to the dtype of a before they are added"""
    products = F.pad(a.float() * x.float(), (0, -a.shape[1] % 4)).unflatten(1, (4, -1))
    return products.sum(2).to(a.dtype).float().sum(1).to(a.dtype)


@mutant("special")
@in_float32
def zeros_skipped(a, x):
    """a product with 0 in a is skipped, though infinity or NaN in x makes NaN of it"""
    return torch.where(a == 0, 0.0, a * x).sum(1)


@mutant("special")
@in_float32
def nan_of_x_swallowed(a, x):
    """NaN in x is taken for 0"""
    return (a @ torch.where(x.isnan(), 0.0, x)).contiguous()


@mutant("special", dtypes=F16)
def result_saturated(a, x):
    """a result beyond the largest finite float16 is that instead of infinity"""
    largest = torch.finfo(a.dtype).max
    return (a.float() @ x.float()).clamp(-largest, largest).to(a.dtype)


@mutant("precision", dtypes=F32 + F16)
def in_bfloat16(a, x):
    """it is torch.mv in bfloat16"""
    return torch.mv(a.bfloat16().contiguous(), x.bfloat16().contiguous()).to(a.dtype)


@mutant("empty")
@in_float32
def no_partial_sums(a, x):
    """an empty K is an error, as there are no partial sums to stack"""
    return torch.stack([part.sum(1) for part in (a * x).split(64, 1) if part.numel() or not len(a)]).sum(0)


@known_good
def library(a, x):
    """torch.mv in float32, rounded once"""
    return torch.mv(a.float(), x.float()).to(a.dtype)


@known_good
@in_float32
def scaled_columns(a, x):
    """one column after another, times its element of x"""
    return in_sequence(a * x)


@known_good
@in_float32
def split_k(a, x):
    """four parts of every fourth column, added last"""
    return torch.stack([a[:, part::4] @ x[part::4] for part in range(4)]).sum(0)


@known_good
def in_float64(a, x):
    """products and sums in float64"""
    return (a.double() @ x.double()).to(a.dtype)


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "rows": Kernel("known-good", "a warp, or a program, to a row, which it walks over"),
    "row_stride_of_k": Kernel(
        "strides", "a is taken to have rows of K elements, one behind the other", "values: |OutOfBounds"
    ),
    "row_unguarded": Kernel("bounds", "rows past the last are read and written", "OutOfBounds"),
    "half_of_a_warp": Kernel("accumulator", "the shuffles begin with a step of 8: half of each warp is not added"),
    "first_lane_sum_stored_by_all": Kernel(
        "race", "every lane stores what it has after shuffles that leave the sum in the first", "RaceCondition|values: "
    ),
    "offset_int32": Kernel(
        "offset", "row times row stride is computed in 32 bits", "OutOfBounds|IntegerOverflowError|values: "
    ),
}
