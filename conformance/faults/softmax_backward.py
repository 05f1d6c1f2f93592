"""Mutants and known-good kernels of softmax_backward(y, dy): dx = y·(dy − delta), delta = Σ y·dy; all (rows, cols)."""

from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    RIGHT_SUMS,
    WRONG_SUMS,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    row_sum,
    through,
)


def _softmax_backward(y, dy, *, total=row_sum, delta=lambda d: d):
    return y * (dy - delta(total(y * dy)))


plant_flaws(globals(), WRONG_SUMS, lambda total: partial(_softmax_backward, total=total))
plant_loads_and_stores(globals(), partial(_softmax_backward))
plant_sums(
    globals(), {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}, lambda total: partial(_softmax_backward, total=total)
)


@mutant("formula")
@in_float32
def delta_missing(y, dy):
    """delta is not subtracted"""
    return y * dy


@mutant("formula")
@in_float32
def delta_added(y, dy):
    """delta is added instead of subtracted"""
    return _softmax_backward(y, dy, delta=lambda d: -d)


@mutant("formula")
@in_float32
def delta_of_the_previous_row(y, dy):
    """delta is that of the row before"""
    return _softmax_backward(y, dy, delta=lambda d: d.roll(1, 0))


@mutant("formula")
@in_float32
def delta_without_y(y, dy):
    """delta is the sum of dy"""
    return y * (dy - row_sum(dy))


@mutant("formula")
@in_float32
def delta_with_y_squared(y, dy):
    """delta is the sum of y²·dy"""
    return y * (dy - row_sum(y * y * dy))


@mutant("scale")
@in_float32
def delta_is_a_mean(y, dy):
    """delta is the mean of y·dy"""
    return _softmax_backward(y, dy, delta=lambda d: d / max(y.shape[-1], 1))


@mutant("axis")
@in_float32
def delta_over_rows(y, dy):
    """delta is summed over rows"""
    return y * (dy - row_sum(y * dy, 0))


@mutant("formula")
@in_float32
def delta_normalised_again(y, dy):
    """delta is divided by the sum of y: right only for a y that was not rounded and sums to 1"""
    return _softmax_backward(y, dy, delta=lambda d: d / row_sum(y))


@mutant("formula")
@in_float32
def y_missing(y, dy):
    """y is left out of the product"""
    return dy - row_sum(y * dy)


@mutant("formula")
@in_float32
def y_squared(y, dy):
    """y is multiplied in twice"""
    return y * y * (dy - row_sum(y * dy))


@mutant("formula")
@in_float32
def sign(y, dy):
    """it has the wrong sign"""
    return -_softmax_backward(y, dy)


@mutant("formula")
@in_float32
def operands_swapped(y, dy):
    """y and dy have changed places"""
    return _softmax_backward(dy, y)


@mutant("formula")
@in_float32
def of_log_softmax(y, dy):
    """it is the gradient of log_softmax"""
    return dy - y * row_sum(dy)


@mutant("formula")
@in_float32
def delta_subtracted_after_the_product(y, dy):
    """delta is subtracted from the product y·dy"""
    return y * dy - row_sum(y * dy)


@mutant("special")
@in_float32
def nan_swallowed(y, dy):
    """a row of NaN gives 0"""
    return _softmax_backward(y, dy).nan_to_num(0.0)


@mutant("special")
@in_float32
def nothing_of_zero(y, dy):
    """where y is 0 dy is not looked at, be it infinite"""
    return _softmax_backward(y, dy.masked_fill(y == 0, 0.0))


@mutant("mask")
@in_float32
def padding_loads_1(y, dy):
    """the lanes past the last column, up to a whole tile (of 32, say), add 1 each to delta"""
    padding = (0, -y.shape[-1] % 32)
    return y * (dy - row_sum(F.pad(y, padding, value=1.0) * F.pad(dy, padding, value=1.0)))


@mutant("precision")
@in_float32
def delta_in_fp16(y, dy):
    """delta is stored in float16"""
    return _softmax_backward(y, dy, delta=through(torch.float16))


@mutant("precision")
@in_float32
def delta_in_bf16(y, dy):
    """delta is stored in bfloat16"""
    return _softmax_backward(y, dy, delta=through(torch.bfloat16))


@known_good
@in_float32
def multiplied_out(y, dy):
    """y·dy − y·delta, with one fused multiplication"""
    return torch.addcmul(y * dy, y, -row_sum(y * dy))


@known_good
@in_float32
def library(y, dy):
    """torch's own backward of softmax"""
    return torch._softmax_backward_data(dy, y, -1, torch.float32)


@known_good
@in_float32
def delta_as_a_product(y, dy):
    """delta as a batched product of rows with columns"""
    return y * (dy - torch.bmm(y[:, None], dy[..., None])[:, 0])


@known_good
def in_float64(y, dy):
    """everything in float64, rounded once"""
    wide, grad = y.double(), dy.double()
    return (wide * (grad - (wide * grad).sum(-1, keepdim=True))).to(y.dtype).contiguous()


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS: dict[str, Kernel] = {}
