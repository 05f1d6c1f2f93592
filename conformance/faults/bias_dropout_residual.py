"""Mutants and known-good kernels of bias_dropout_residual(x, bias, residual): y (rows, cols)."""

import torch

from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults._dropout import Drop, in_memory, kept, plant_drops, right, scale, scaled, word_of
from touchstone.conformance.faults._rows import F16, in_float32


def shifted(x, bias):
    return x if bias is None else x + bias


def _fused(drop: Drop):
    def op(x, bias, residual, *, p=0.0, seed=0, offset=0):
        return drop(shifted(x, bias), p, seed, offset) + residual

    return op


plant_drops(globals(), _fused, "sign_of_zero_left")


@mutant("formula")
@in_float32
def residual_dropped_too(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the residual is dropped too"""
    return right(shifted(x, bias) + residual, p, seed, offset)


@mutant("formula")
@in_float32
def residual_dropped_unscaled(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the residual is 0 where x is dropped"""
    keep = kept(x, p, seed, offset)
    return torch.where(keep, shifted(x, bias) * scale(p) + residual, 0.0)


@mutant("formula")
@in_float32
def bias_after_dropout(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the bias is added after dropout"""
    return shifted(right(x, p, seed, offset), bias) + residual


@mutant("scale")
@in_float32
def bias_unscaled(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the bias is dropped with x but not scaled"""
    keep = kept(x, p, seed, offset)
    return scaled(x, keep, p) + (0.0 if bias is None else torch.where(keep, bias.expand(x.shape), 0.0)) + residual


@mutant("weights")
@in_float32
def bias_ignored(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the bias is ignored"""
    return right(x, p, seed, offset) + residual


@mutant("weights")
@in_float32
def bias_of_column_0(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the first element of the bias stands for all"""
    return right(shifted(x, None if bias is None else bias[:1]), p, seed, offset) + residual


@mutant("formula")
@in_float32
def residual_ignored(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the residual is not added"""
    return right(shifted(x, bias), p, seed, offset)


@mutant("accumulator")
@in_float32
def residual_twice(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the residual is added twice"""
    return right(shifted(x, bias), p, seed, offset) + 2 * residual


@mutant("scale")
@in_float32
def residual_scaled(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the residual is scaled as what is kept is"""
    return right(shifted(x, bias), p, seed, offset) + residual * (scale(p) or 1.0)


@mutant("precision", dtypes=F16)
def through_bf16_between(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """x + bias passes through bfloat16"""
    h = shifted(x.float(), None if bias is None else bias.float()).bfloat16().float()
    return (right(h, p, seed, offset) + residual.float()).to(x.dtype).contiguous()


@mutant("strides")
def index_in_memory(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """the index is the place in x's memory: another layout is another mask"""
    keep = word_of(in_memory(x), seed, offset) >= int(p * 2**32)
    h = shifted(x.float(), None if bias is None else bias.float())
    return (scaled(h, keep, p) + residual.float()).to(x.dtype).contiguous()


@known_good
def in_float64(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """computed in float64 and rounded once"""
    h = shifted(x.double(), None if bias is None else bias.double())
    return (right(h, p, seed, offset) + residual.double()).to(x.dtype).contiguous()


@known_good
@in_float32
def scaled_one_by_one(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """x and the bias are scaled each by itself, and the residual comes first"""
    keep = kept(x, p, seed, offset)
    y = residual + torch.where(keep, x * scale(p), 0.0)
    return y if bias is None else y + torch.where(keep, bias.expand(x.shape) * scale(p), 0.0)


def _stored(x, bias, p, seed, offset, sums, products):
    h = x.float() if bias is None else x.float() + bias.float()
    dropped = right(h.to(x.dtype).float() if sums else h, p, seed, offset)
    return dropped.to(x.dtype).float() if products else dropped


@known_good
def sums_stored(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """x + bias is stored in the operands' dtype, as where a product with the bias came from another kernel"""
    return (_stored(x, bias, p, seed, offset, True, False) + residual.float()).to(x.dtype).contiguous()


@known_good
def products_stored(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """what dropout gives is stored in the operands' dtype"""
    return (_stored(x, bias, p, seed, offset, False, True) + residual.float()).to(x.dtype).contiguous()


@known_good
def eager(x, bias, residual, *, p=0.0, seed=0, offset=0):
    """each of the three steps stores its result in the operands' dtype"""
    return (_stored(x, bias, p, seed, offset, True, True) + residual.float()).to(x.dtype).contiguous()
