"""Mutants and known-good kernels of layer_norm(x, weight, bias, *, eps): y (rows, cols)."""

import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, plant
from touchstone.conformance.faults._norms import (
    BIAS_FLAWS,
    WEIGHT_FLAWS,
    hat_flaws,
    hat_known_good,
    layer_norm,
    normalise,
)
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    RIGHT_SUMS,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
)

plant_flaws(globals(), hat_flaws(centred=True), layer_norm)
plant_flaws(globals(), WEIGHT_FLAWS, lambda scale: layer_norm(scale=scale))
plant_flaws(globals(), BIAS_FLAWS, lambda shift: layer_norm(shift=shift))
plant_loads_and_stores(globals(), layer_norm())


def _with_total(total):
    return layer_norm(lambda x, eps: normalise(x, eps, total=total))


plant_sums(globals(), {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}, _with_total)
for _name, (_about, _hat) in hat_known_good(centred=True).items():
    plant(globals(), _name, in_float32(layer_norm(_hat)), _about, "known-good")


@known_good
def library(x, weight, bias, *, eps=1e-5):
    """torch's layer_norm in the dtype of x"""
    if not x.shape[-1]:
        return x.clone()
    return F.layer_norm(x.contiguous(), weight.shape, weight, bias, eps)


@known_good
@in_float32
def scale_and_shift_folded(x, weight, bias, *, eps=1e-5):
    """one product with rstd·weight and one sum with bias, of x less its mean"""
    centre = x - x.mean(-1, keepdim=True)
    scale = (centre.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return centre * scale if bias is None else bias.addcmul(centre, scale)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS: dict[str, Kernel] = {}
