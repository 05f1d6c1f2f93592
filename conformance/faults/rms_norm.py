"""Mutants and known-good kernels of rms_norm(x, weight, *, eps): y (rows, cols)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant, plant
from touchstone.conformance.faults._norms import WEIGHT_FLAWS, hat_flaws, hat_known_good, normalise, rms_hat, rms_norm
from touchstone.conformance.faults._rows import (
    COMPENSATED_SUM,
    F16,
    F32,
    RIGHT_SUMS,
    in_float32,
    plant_flaws,
    plant_loads_and_stores,
    plant_sums,
    through,
)

plant_flaws(globals(), hat_flaws(centred=False), rms_norm)
plant_flaws(globals(), WEIGHT_FLAWS, lambda scale: rms_norm(scale=scale))
plant_loads_and_stores(globals(), rms_norm())


def _with_total(total):
    return rms_norm(lambda x, eps: normalise(x, eps, centred=False, total=total))


plant_sums(globals(), {**RIGHT_SUMS, "compensation": COMPENSATED_SUM}, _with_total)
for _name, (_about, _hat) in hat_known_good(centred=False).items():
    plant(globals(), _name, in_float32(rms_norm(_hat)), _about, "known-good")


@mutant("precision", dtypes=F32 + F16)
@in_float32
def x_hat_in_bf16(x, weight, *, eps=1e-6):
    """x·rstd is stored in bfloat16 before the weight comes in"""
    return through(torch.bfloat16)(rms_hat(x, eps)) * weight


@mutant("overflow", dtypes=F16)
def squares_in_the_dtype(x, weight, *, eps=1e-6):
    """x is squared in its own dtype, where 256² is infinite"""
    square = (x * x).float().mean(-1, keepdim=True)
    return (x.float() * (square + eps).rsqrt() * weight.float()).to(x.dtype).contiguous()


@known_good
def library(x, weight, *, eps=1e-6):
    """torch's rms_norm in float32, rounded once"""
    return F.rms_norm(x.float().contiguous(), weight.shape, weight.float(), eps).to(x.dtype)


@known_good
def x_hat_stored(x, weight, *, eps=1e-6):
    """x·rstd is rounded to the dtype of x before the weight comes in"""
    wide = x.float().contiguous()
    stored = (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
    return weight * stored


@known_good
@in_float32
def norm_of_the_vector(x, weight, *, eps=1e-6):
    """the 2-norm of the row over the root of cols"""
    rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / max(x.shape[-1], 1) ** 0.5
    return x / torch.hypot(rms, x.new_tensor(eps).sqrt()) * weight


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {"weight_stride_ignored": Kernel("strides", "the stride of weight is taken to be 1", "OutOfBounds")}
