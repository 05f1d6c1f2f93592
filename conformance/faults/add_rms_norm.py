"""Mutants and known-good kernels of add_rms_norm(x, residual, weight, *, eps): y and h = x + residual, (rows, cols)
each."""

from functools import partial

import torch.nn.functional as F

from touchstone.conformance.faults import known_good, plant
from touchstone.conformance.faults._norms import (
    SUM_FLAWS,
    WEIGHT_FLAWS,
    cut_to,
    hat_flaws,
    hat_known_good,
    normalise,
    on_changed_sum,
    on_rounded_sum,
    on_sum,
    rms_norm,
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

plant_flaws(globals(), hat_flaws(centred=False), lambda hat: on_sum(rms_norm(hat)))
plant_flaws(globals(), WEIGHT_FLAWS, lambda scale: on_sum(rms_norm(scale=scale)))
plant_flaws(globals(), SUM_FLAWS, on_changed_sum(rms_norm()))
plant_loads_and_stores(globals(), on_sum(rms_norm()))
plant_sums(globals(), RIGHT_SUMS, lambda total: on_sum(rms_norm(partial(normalise, centred=False, total=total))))
for _name, (_about, _hat) in hat_known_good(centred=False).items():
    plant(globals(), _name, in_float32(on_sum(rms_norm(_hat))), _about, "known-good")
plant(globals(), "h_is_y", in_float32(y_for_h(rms_norm())), "y is returned in the place of h", "formula")
plant(globals(), "h_truncated", cut_to(cut, rms_norm()), "h is cut instead of rounded", "precision", dtypes=HALF)
plant(
    globals(),
    "norm_of_the_rounded_sum",
    on_rounded_sum(rms_norm()),
    "y is the norm of the h that is returned",
    "known-good",
)


@known_good
def library(x, residual, weight, *, eps=1e-6):
    """torch's rms_norm of x + residual in float32"""
    h = x.float().contiguous() + residual.float()
    return F.rms_norm(h, weight.shape, weight.float(), eps).to(x.dtype), h.to(x.dtype)


@known_good
def x_hat_stored(x, residual, weight, *, eps=1e-6):
    """h, and then h·rstd, is rounded to the dtype of x before the weight comes in"""
    h = (x + residual).contiguous()
    wide = h.float()
    stored = (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return weight * stored, h
