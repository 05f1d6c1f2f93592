"""Mutants and known-good kernels of layer_norm_backward(x, weight, dy, *, mean, rstd, eps): dx (rows, cols), dweight,
dbias (cols,)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._norms import backward_flaws, backward_of, split_rows, through_autograd
from touchstone.conformance.faults._rows import (
    RIGHT_SUMS,
    first,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    row_sum,
)

_right = backward_of(True)
plant_flaws(globals(), backward_flaws(centred=True), lambda build: build())
plant_loads_and_stores(globals(), backward_of(True, given=False))
plant_sums(globals(), RIGHT_SUMS, lambda total: backward_of(True, total=total, over_rows=total))


@mutant("parameter")
@in_float32
def given_mean_taken_for_0(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """a mean that is given is taken for 0"""
    return _right(x, weight, dy, mean=None if mean is None else torch.zeros_like(mean), rstd=rstd, eps=eps)


@mutant("parameter")
@in_float32
def given_rstd_taken_for_the_variance(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """an rstd that is given is taken for the variance"""
    return _right(x, weight, dy, mean=mean, rstd=None if rstd is None else (rstd + eps).rsqrt(), eps=eps)


@mutant("parameter")
@in_float32
def given_rstd_of_row_0(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """of an rstd that is given, row 0 serves every row"""
    return _right(x, weight, dy, mean=mean, rstd=None if rstd is None else rstd[:1].expand_as(rstd), eps=eps)


@mutant("parameter")
@in_float32
def mean_from_rstd_alone(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """the mean is not recomputed, but 0, where only rstd is given"""
    if mean is None and rstd is not None:
        mean = torch.zeros_like(rstd)
    return _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)


@mutant("formula")
@in_float32
def dx_is_dy(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dx is dy"""
    return dy.clone(), *_right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)[1:]


@mutant("formula")
@in_float32
def dweight_without_x_hat(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight is the sum of dy, without x̂"""
    dx, _, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dbias.clone(), dbias


@mutant("formula")
@in_float32
def dweight_of_x(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight is the sum of dy·x, not normalised"""
    dx, _, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, (dy * x).sum(0), dbias


@mutant("formula")
@in_float32
def dweight_with_weight(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight has weight as a further factor: g in the place of dy"""
    dx, dweight, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dweight * weight, dbias


@mutant("accumulator")
@in_float32
def dweight_twice(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight is counted twice"""
    dx, dweight, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, 2 * dweight, dbias


@mutant("axis")
@in_float32
def dweight_and_dbias_swapped(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight and dbias have changed places"""
    dx, dweight, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dbias, dweight


@mutant("formula")
@in_float32
def dbias_of_dx(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dbias is the sum of dx"""
    dx, dweight, _ = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dweight, dx.sum(0)


@mutant("formula")
@in_float32
def dbias_with_weight(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dbias has weight as a further factor"""
    dx, dweight, dbias = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dweight, dbias * weight


@mutant("tail")
@in_float32
def dbias_of_the_first_tile(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dbias is that of the first 32 rows"""
    dx, dweight, _ = _right(x, weight, dy, mean=mean, rstd=rstd, eps=eps)
    return dx, dweight, first(lambda n: min(n, 32))(dy, 0)[0]


@known_good
@in_float32
def statistics_recomputed(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """mean and rstd are recomputed where they are given"""
    return backward_of(True, given=False)(x, weight, dy, mean=mean, rstd=rstd, eps=eps)


@known_good
@in_float32
def dweight_in_5_parts(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dweight and dbias from partial sums over fifths of the rows"""
    return backward_of(True, over_rows=split_rows(5))(x, weight, dy, mean=mean, rstd=rstd, eps=eps)


@known_good
@in_float32
def dweight_as_a_product(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """sums over rows as products with a row of ones"""
    ones = x.new_ones((1, x.shape[0]))
    return backward_of(True, over_rows=lambda t, dim: ones @ t)(x, weight, dy, mean=mean, rstd=rstd, eps=eps)


@known_good
@in_float32
def autograd(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """autograd through torch's layer_norm"""
    return through_autograd(F.layer_norm, with_bias=True)(x, weight, dy, eps)


@known_good
@in_float32
def chain_rule(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """through the gradients of variance and mean one by one"""
    cols = max(x.shape[-1], 1)
    centre = x - x.mean(-1, keepdim=True)
    r = (centre.square().mean(-1, keepdim=True) + eps).rsqrt()
    g = dy * weight
    dvariance = -0.5 * r**3 * row_sum(g * centre)
    dmean = -r * row_sum(g)
    return r * g + 2 / cols * centre * dvariance + dmean / cols, (dy * centre * r).sum(0), dy.sum(0)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "reduction_buffer_reused": Kernel(
        "race",
        "no barrier after a reduction: the next one overwrites partial sums that slower warps still read",
        "RaceCondition",
    ),
    "last_rows_dropped": Kernel("tail", "rows beyond a multiple of the number of blocks are left out"),
    "part_too_many": Kernel("bounds", "the last block sums one part more than there are blocks", "OutOfBounds"),
    "rstd_stride_ignored": Kernel("strides", "the stride of a given rstd is taken to be 1", "values: |OutOfBounds"),
    "mean_gradient_left_out": Kernel("formula", "dx lacks the mean of dy times weight"),
    "ticket_of_each_thread": Kernel(
        "unwritten",
        "every thread of a block takes a ticket, so no block holds the last one: nothing sums the parts",
        "under threads in reverse",
    ),
}
