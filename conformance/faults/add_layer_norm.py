"""Mutants and known-good kernels of add_layer_norm(x, residual, weight, bias, *, eps): y and h = x + residual, (rows,
cols) each."""

from functools import partial

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import known_good, plant
from touchstone.conformance.faults._norms import (
    BIAS_FLAWS,
    SUM_FLAWS,
    WEIGHT_FLAWS,
    cut_to,
    hat_flaws,
    hat_known_good,
    layer_norm,
    normalise,
    on_changed_sum,
    on_rounded_sum,
    on_sum,
    y_for_h,
)
from touchstone.conformance.faults._rows import (
    HALF,
    RIGHT_SUMS,
    cut,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
)

plant_flaws(globals(), hat_flaws(centred=True), lambda hat: on_sum(layer_norm(hat)))
plant_flaws(globals(), WEIGHT_FLAWS, lambda scale: on_sum(layer_norm(scale=scale)))
plant_flaws(globals(), BIAS_FLAWS, lambda shift: on_sum(layer_norm(shift=shift)))
plant_flaws(globals(), SUM_FLAWS, on_changed_sum(layer_norm()))
plant_loads_and_stores(globals(), on_sum(layer_norm()))
plant_sums(globals(), RIGHT_SUMS, lambda total: on_sum(layer_norm(partial(normalise, total=total))))
for _name, (_about, _hat) in hat_known_good(centred=True).items():
    plant(globals(), _name, in_float32(on_sum(layer_norm(_hat))), _about, "known-good")
plant(globals(), "h_is_y", in_float32(y_for_h(layer_norm())), "y is returned in the place of h", "formula")
plant(globals(), "h_truncated", cut_to(cut, layer_norm()), "h is cut instead of rounded", "precision", dtypes=HALF)
plant(
    globals(),
    "norm_of_the_rounded_sum",
    on_rounded_sum(layer_norm()),
    "y is the norm of the h that is returned",
    "known-good",
)


@known_good
def library(x, residual, weight, bias, *, eps=1e-5):
    """torch's layer_norm of x + residual, in the dtype of x"""
    h = torch.add(x, residual).contiguous()
    return (F.layer_norm(h, weight.shape, weight, bias, eps) if h.shape[-1] else h.clone()), h


@known_good
def mean_of_the_exact_sum(x, residual, weight, bias, *, eps=1e-5):
    """the mean is of the sum in float32, the rest of the h that is stored (DeepSpeed's layer_norm_residual)"""
    exact = x.float() + residual.float()
    h = exact.to(x.dtype).contiguous()
    centred = h.float() - exact.mean(-1, keepdim=True)
    y = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype).contiguous(), h
