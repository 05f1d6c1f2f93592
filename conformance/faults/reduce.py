"""Mutants and known-good kernels of reduce(x, *, function): (n,) -> ()."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._multilinear import SCALAR, plant_multilinear
from touchstone.conformance.faults._rows import F16, F32, in_float32, row_sum

EQUIVALENT = SCALAR
FOLD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


def checked(fn):
    """With the error that nothing has no extreme."""

    def call(x, *, function="sum"):
        if not x.numel() and function != "sum":
            raise ValueError(f"x: is empty, and nothing has no {function}")
        if function not in ("sum", "max", "min"):
            raise ValueError(f"function: got {function!r}")
        return fn(x, function=function)

    call.__name__, call.__doc__ = fn.__name__, fn.__doc__
    return call


def folded(x: torch.Tensor, function: str, total=row_sum) -> torch.Tensor:
    """Over all of x."""
    return total(x[None])[0, 0] if function == "sum" else (x.amax(0) if function == "max" else x.amin(0))


def _reduce(total):
    return lambda x, function="sum": folded(x, function, total)


plant_multilinear(globals(), _reduce, scalar=True)


@mutant("mask")
@in_float32
def maximum_from_zero(x, *, function="sum"):
    """a maximum starts at 0 instead of -inf"""
    return folded(F.pad(x, (0, 1)) if function == "max" else x, function)


@mutant("mask")
@in_float32
def minimum_from_zero(x, *, function="sum"):
    """a minimum starts at 0 instead of inf"""
    return folded(F.pad(x, (0, 1)) if function == "min" else x, function)


@mutant("mask")
@in_float32
def padding_loads_0(x, *, function="sum"):
    """lanes past the last element, up to a whole tile (of 32, say), hold 0 whatever the function"""
    return folded(F.pad(x, (0, -len(x) % 32)), function)


@mutant("special")
@in_float32
def extremes_from_finite(x, *, function="sum"):
    """extremes start at the largest finite number of the other sign"""
    end = torch.finfo(torch.float32).max
    return folded(F.pad(x, (0, 1), value=-end if function == "max" else end if function == "min" else 0.0), function)


@mutant("special")
@in_float32
def extremes_skip_nan(x, *, function="sum"):
    """a NaN loses against a number, as in fmaxf and fminf"""
    return folded(x if function == "sum" else x[~x.isnan()], function)


@mutant("special")
@in_float32
def nan_keeps_its_place(x, *, function="sum"):
    """of two the second is kept unless the first is ahead, so that a NaN gives way to what follows"""
    return folded(x if function == "sum" or not x.isnan().any() else x[int(x.isnan().nonzero().max()) + 1 :], function)


@mutant("formula")
@in_float32
def absolute_maximum(x, *, function="sum"):
    """a maximum is that of the absolute values"""
    return folded(x.abs() if function == "max" else x, function)


@mutant("formula")
@in_float32
def minimum_for_maximum(x, *, function="sum"):
    """max and min are confused"""
    return folded(x, {"max": "min", "min": "max"}.get(function, function))


@mutant("formula")
@in_float32
def mean(x, *, function="sum"):
    """a sum is divided by the number of terms"""
    return folded(x, function) / (max(len(x), 1) if function == "sum" else 1)


@mutant("tail")
@in_float32
def no_power_of_two(x, *, function="sum"):
    """halves are folded, 97, 48, 24, ..., and of an odd number the last is lost"""
    while len(x) > 1:
        half = len(x) // 2
        x = FOLD[function](x[:half], x[half : 2 * half])
    return folded(x, function)


@mutant("tail")
@in_float32
def blocks_beyond_the_first_lost(x, *, function="sum"):
    """only the first block of 256 elements is reduced"""
    return folded(x[:256], function)


@mutant("accumulator")
@in_float32
def first_element_twice(x, *, function="sum"):
    """the first element begins the sum and is added again"""
    return folded(torch.cat([x[:1], x]) if function == "sum" else x, function)


@mutant("accumulator")
@in_float32
def grid_stride_short(x, *, function="sum"):
    """the grid's stride is one block too short: elements at block ends count twice"""
    return folded(torch.cat([x, x[256::255]]) if function == "sum" else x, function)


@mutant("accumulator")
@in_float32
def second_load_unguarded(x, *, function="sum"):
    """with two elements a thread the second is guarded by the first one's index: the last counts for what is absent"""
    return folded(x, function) + (x[-1] if function == "sum" and len(x) % 2 else 0)


@mutant("race")
@in_float32
def half_of_a_warp(x, *, function="sum"):
    """shuffles begin with a step of 8: half of each warp is not combined"""
    kept = torch.arange(len(x)) % 32 < 16
    return folded(x[kept], function)


@mutant("accumulator", stateful=True)
def total_never_zeroed():
    """the float32 that blocks add to is kept, and zeroed only when it is allocated"""
    total = torch.zeros(())

    @checked
    def call(x, *, function="sum"):
        if function != "sum":
            return folded(x, function).clone()
        total.add_(x.float().sum())
        return total.to(x.dtype, copy=True)

    return call


@mutant("precision", dtypes=F32 + F16)
def atomics_in_float16(x, *, function="sum"):
    """blocks of 256 elements are combined in a float16"""
    if function != "sum" or not len(x):
        return folded(x.half().float(), function).to(x.dtype)
    total = torch.zeros((), dtype=torch.float16)
    for part in x.float().split(256):
        total += part.sum().half()
    return total.to(x.dtype)


@mutant("precision", dtypes=F32)
@in_float32
def extremes_through_bf16(x, *, function="sum"):
    """extremes pass through bfloat16"""
    return folded(x, function) if function == "sum" else folded(x, function).bfloat16().float()


@known_good
@checked
def library(x, *, function="sum"):
    """torch.sum, torch.amax, torch.amin in float32, rounded once"""
    return folded(x.float(), function).to(x.dtype, copy=True)


@known_good
@checked
def sorted_extremes(x, *, function="sum"):
    """sums in float64, extremes at the ends of the sorted elements, of which NaN is the last"""
    if function == "sum":
        return x.double().sum().to(x.dtype)
    ordered = x.float().sort().values
    end = ordered[-1] if function == "max" or ordered[-1].isnan() else ordered[0]
    return end.to(x.dtype)


@known_good
@checked
def by_halves(x, *, function="sum"):
    """the second half folded onto the first until one element is left"""
    t = x.float() if len(x) else torch.zeros(1)
    while len(t) > 1:
        half = len(t) // 2
        t = torch.cat([FOLD[function](t[:half], t[half : 2 * half]), t[2 * half :]])
    return t[0].to(x.dtype, copy=True)


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "tree": Kernel("known-good", "a tree over a block, in shared memory, and another launch for the blocks' results"),
    "no_barrier": Kernel("race", "no barrier between the steps of the tree", "RaceCondition|UninitialisedShared"),
    "last_warp_without_barrier": Kernel(
        "race", "the last six steps are one warp's, which is taken to run in step", "RaceCondition"
    ),
    "padding_is_0": Kernel("mask", "what lies past the last element is taken for 0 whatever the function"),
    "nan_dropped": Kernel("special", "the larger of two is found by a comparison that a NaN loses"),
    "last_block_lost": Kernel("tail", "the grid has n // threads blocks: what is left is not read"),
    "added_in_place": Kernel(
        "race", "blocks combine into the result by a load and a store, not by an atomic", "RaceCondition|values: "
    ),
}
