"""Mutants and known-good kernels of rms_norm_backward(x, weight, dy, *, rstd, eps): dx (rows, cols) and dweight
(cols,)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults._norms import backward, backward_flaws, backward_of, split_rows, through_autograd
from touchstone.conformance.faults._rows import (
    RIGHT_SUMS,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    row_sum,
)

_right = backward_of(False)
plant_flaws(globals(), backward_flaws(centred=False), lambda build: build())
plant_loads_and_stores(globals(), backward_of(False, given=False))
plant_sums(globals(), RIGHT_SUMS, lambda total: backward_of(False, total=total, over_rows=total))


@mutant("parameter")
@in_float32
def given_rstd_taken_for_the_mean_square(x, weight, dy, *, rstd=None, eps=1e-6):
    """an rstd that is given is taken for the mean square"""
    return _right(x, weight, dy, rstd=None if rstd is None else (rstd + eps).rsqrt(), eps=eps)


@mutant("parameter")
@in_float32
def given_rstd_of_row_0(x, weight, dy, *, rstd=None, eps=1e-6):
    """of an rstd that is given, row 0 serves every row"""
    return _right(x, weight, dy, rstd=None if rstd is None else rstd[:1].expand_as(rstd), eps=eps)


@mutant("formula")
@in_float32
def dx_is_dy(x, weight, dy, *, rstd=None, eps=1e-6):
    """dx is dy"""
    return dy.clone(), _right(x, weight, dy, rstd=rstd, eps=eps)[1]


@mutant("formula")
@in_float32
def dx_of_a_layer_norm(x, weight, dy, *, rstd=None, eps=1e-6):
    """dx subtracts the mean of g, as in a layer norm"""
    zero = x.new_zeros(x.shape[0])
    return backward(x, weight, dy, mean=zero, rstd=rstd, eps=eps)[:2]


@mutant("formula")
@in_float32
def last_term_without_rstd(x, weight, dy, *, rstd=None, eps=1e-6):
    """the last term of dx has x in the place of one x̂"""
    r = (x.square().mean(-1, keepdim=True) + eps).rsqrt() if rstd is None else rstd[:, None]
    g = dy * weight
    return r * (g - x * (row_sum(g * x * r) / x.shape[-1])), (dy * x * r).sum(0)


@mutant("formula")
@in_float32
def dweight_without_x_hat(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight is the sum of dy, without x̂"""
    return _right(x, weight, dy, rstd=rstd, eps=eps)[0], dy.sum(0)


@mutant("formula")
@in_float32
def dweight_of_x(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight is the sum of dy·x, not normalised"""
    return _right(x, weight, dy, rstd=rstd, eps=eps)[0], (dy * x).sum(0)


@mutant("formula")
@in_float32
def dweight_with_weight(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight has weight as a further factor: g in the place of dy"""
    dx, dweight = _right(x, weight, dy, rstd=rstd, eps=eps)
    return dx, dweight * weight


@mutant("accumulator")
@in_float32
def dweight_twice(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight is counted twice"""
    dx, dweight = _right(x, weight, dy, rstd=rstd, eps=eps)
    return dx, 2 * dweight


@known_good
@in_float32
def statistics_recomputed(x, weight, dy, *, rstd=None, eps=1e-6):
    """rstd is recomputed where it is given"""
    return backward_of(False, given=False)(x, weight, dy, rstd=rstd, eps=eps)


@known_good
@in_float32
def dweight_in_5_parts(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight from partial sums over fifths of the rows"""
    return backward_of(False, over_rows=split_rows(5))(x, weight, dy, rstd=rstd, eps=eps)


@known_good
@in_float32
def autograd(x, weight, dy, *, rstd=None, eps=1e-6):
    """autograd through torch's rms_norm"""
    return through_autograd(F.rms_norm, with_bias=False)(x, weight, dy, eps)


@known_good
@in_float32
def from_x_and_its_mean_square(x, weight, dy, *, rstd=None, eps=1e-6):
    """g·rstd - x·rstd³·mean(g·x), never forming x̂ in dx"""
    r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    g = dy * weight
    return g * r - x * (r * (r * r * ((g * x).mean(-1, keepdim=True)))), torch.einsum("rc,rc,r->c", dy, x, r[:, 0])


@known_good
def x_hat_stored(x, weight, dy, *, rstd=None, eps=1e-6):
    """the gradients of a forward that stores x̂ in the dtype of x: dy·weight is rounded too"""
    wide = x.float().contiguous()
    r = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    g = (dy * weight).float().contiguous()
    xhat = wide * r
    dx = r * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * xhat.to(x.dtype).float()).sum(0).to(x.dtype)


def _through_a_stored_x_hat(x, weight, dy, eps, dweight):
    """dx and `dweight(dy, x̂)` of a forward that stores x̂ in the dtype of x."""
    wide = x.float().contiguous()
    r = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    g = (dy * weight).float()
    dx = r * g - wide * (r * r * r * (g * wide).mean(-1, keepdim=True))
    return dx.to(x.dtype), dweight(dy, (wide * r).to(x.dtype)).to(x.dtype)


@known_good
def llama_under_autograd(x, weight, dy, *, rstd=None, eps=1e-6):
    """autograd through weight * (x * rsqrt(mean x² + eps)).to(dtype), as models in 16 bits have it"""
    x, weight = (leaf.detach().requires_grad_() for leaf in (x, weight))
    with torch.enable_grad():
        wide = x.float()
        y = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
        return tuple(grad.contiguous() for grad in torch.autograd.grad(y, (x, weight), dy))


@known_good
def products_rounded(x, weight, dy, *, rstd=None, eps=1e-6):
    """each product of dy and the stored x̂ is rounded to their dtype, and summed in float32"""
    return _through_a_stored_x_hat(x, weight, dy, eps, lambda dy, xhat: (dy * xhat).float().sum(0))


@mutant("accumulator", dtypes=("float16", "bfloat16"))
def products_summed_in_16_bits(x, weight, dy, *, rstd=None, eps=1e-6):
    """dweight adds up products of dy and the stored x̂ in their dtype"""

    def one_by_one(dy, xhat):
        total = torch.zeros_like(dy[0]) if len(dy) else dy.sum(0)
        for product in dy * xhat:
            total = total + product
        return total

    return _through_a_stored_x_hat(x, weight, dy, eps, one_by_one)
