"""Mutants and known-good kernels of dot(a, b): (n,), (n,) -> ()."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._multilinear import SCALAR, plant_multilinear
from touchstone.conformance.faults._rows import F16, F32, HALF, in_float32

EQUIVALENT = SCALAR


def _dot(total):
    return lambda a, b: total((a * b)[None])[0, 0]


plant_multilinear(globals(), _dot, scalar=True)


@mutant("formula")
@in_float32
def square_of_a(a, b):
    """it is the sum of the squares of a"""
    return (a * a).sum()


@mutant("formula")
@in_float32
def absolute(a, b):
    """the products lose their signs"""
    return (a * b).abs().sum()


@mutant("formula")
@in_float32
def product_of_sums(a, b):
    """it is the product of both sums"""
    return a.sum() * b.sum()


@mutant("formula")
@in_float32
def b_reversed(a, b):
    """b is read from its end"""
    return (a * b.flip(0)).sum()


@mutant("formula")
@in_float32
def mean(a, b):
    """the sum is divided by the number of terms"""
    return (a * b).sum() / max(len(a), 1)


@mutant("tail")
@in_float32
def vector_tail_lost(a, b):
    """what exceeds a multiple of 8 elements, the length of a vector, is left out"""
    whole = len(a) // 8 * 8
    return (a[:whole] * b[:whole]).sum()


@mutant("tail")
@in_float32
def odd_element_lost(a, b):
    """with pairs of elements the last of an odd number is left out"""
    whole = len(a) // 2 * 2
    return (a[:whole] * b[:whole]).sum()


@mutant("mask")
@in_float32
def last_pair_twice(a, b):
    """the last element of an odd number fills its pair's second place and counts twice"""
    return (a * b).sum() + (a[-1] * b[-1] if len(a) % 2 else 0)


@mutant("tail")
@in_float32
def blocks_beyond_the_first_lost(a, b):
    """a thread takes one product, and only 1024 threads are launched"""
    return (a * b)[:1024].sum()


@mutant("tail")
@in_float32
def grid_stride_of_a_block(a, b):
    """with two blocks of 256 threads the grid's stride is one block's, so that all but 256 products count twice"""
    return (a * b).sum() + (a * b)[256:].sum()


@mutant("precision", dtypes=HALF)
def products_rounded(a, b):
    """each product is rounded to the dtype of a before it is added"""
    return (a * b).float().sum().to(a.dtype)


@mutant("precision", dtypes=HALF)
def partial_sums_rounded(a, b):
    """the partial sums of 32 blocks are rounded to the dtype of a before they are added"""
    products = a.float() * b.float()
    return F.pad(products, (0, -len(a) % 32)).unflatten(0, (32, -1)).sum(-1).to(a.dtype).float().sum().to(a.dtype)


@mutant("precision", dtypes=F32 + F16)
def atomics_in_float16(a, b):
    """blocks of 256 products are added to a float16"""
    total = torch.zeros((), dtype=torch.float16)
    for part in (a.float() * b.float()).split(256) if len(a) else ():
        total += part.sum().half()
    return total.to(a.dtype)


@mutant("special")
@in_float32
def zeros_skipped(a, b):
    """a product with 0 in a is skipped, though infinity or NaN in b makes NaN of it"""
    return torch.where(a == 0, 0.0, a * b).sum()


@mutant("special")
@in_float32
def nan_swallowed(a, b):
    """NaN in a is taken for 0"""
    return (torch.where(a.isnan(), 0.0, a) * b).sum()


@mutant("special")
@in_float32
def nan_of_b_swallowed(a, b):
    """NaN in b is taken for 0"""
    return (a * torch.where(b.isnan(), 0.0, b)).sum()


@mutant("special", dtypes=F16)
def result_saturated(a, b):
    """a result beyond the largest finite float16 is that instead of infinity"""
    largest = torch.finfo(a.dtype).max
    return (a.float() * b.float()).sum().clamp(-largest, largest).to(a.dtype)


@mutant("contract")
def one_element(a, b):
    """the result is a vector of one element"""
    return (a.float() * b.float()).sum(0, keepdim=True).to(a.dtype)


@mutant("unwritten")
def empty_sum_is_not_written(a, b):
    """without products nothing is launched, and the output keeps what was in memory"""
    if len(a):
        return (a.float() * b.float()).sum().to(a.dtype)
    return torch.full((), 0.125, dtype=a.dtype)


@mutant("accumulator", stateful=True)
def total_never_zeroed():
    """the float32 that blocks add to is kept, and zeroed only when it is allocated"""
    total = torch.zeros(())

    def call(a, b):
        total.add_((a.float() * b.float()).sum())
        return total.to(a.dtype, copy=True)

    return call


@known_good
def library(a, b):
    """torch.dot in float32, rounded once"""
    return torch.dot(a.float(), b.float()).to(a.dtype)


@known_good
def in_float64(a, b):
    """products and sums in float64"""
    return (a.double() * b.double()).sum().to(a.dtype)


@known_good
@in_float32
def fused(a, b):
    """products that are rounded with the sum alone, one after another in each of 64 lanes"""
    left, right = (F.pad(t, (0, -len(t) % 64)).view(-1, 64) for t in (a, b))
    total = torch.zeros(64, dtype=torch.float32)
    for x, y in zip(left, right, strict=True):
        total = torch.addcmul(total, x, y)
    return total.sum()


@known_good
@in_float32
def in_pairs(a, b):
    """halves of the products added to one another until one is left"""
    t = a * b if len(a) else a.new_zeros(1)
    while len(t) > 1:
        half = -(-len(t) // 2)
        t = t[:half] + F.pad(t[half:], (0, 2 * half - len(t)))
    return t[0]


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "blocks": Kernel("known-good", "blocks walk over the products and leave partial sums, which one block adds"),
    "no_barrier": Kernel(
        "race", "no barrier between the warps' partial sums and their reading", "UninitialisedShared|RaceCondition"
    ),
    "half_of_a_warp": Kernel("accumulator", "the shuffles begin with a step of 8: half of each warp is not added"),
    "stride_of_a_block": Kernel(
        "accumulator", "a thread steps by its block's threads and not by the grid's: products count for each block"
    ),
    "b_stride_ignored": Kernel("strides", "b is taken to have the stride of a", "values: |OutOfBounds"),
    "tail_unmasked": Kernel("bounds", "lanes past the last product read on", "OutOfBounds"),
    "added_in_place": Kernel(
        "race", "blocks add to the total by a load and a store, not by an atomic addition", "RaceCondition|values: "
    ),
}
