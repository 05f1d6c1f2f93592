"""Mutants and known-good kernels of activation(x, bias, *, activation): y = act(x + bias), (rows, cols)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, plant
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._pointwise import plant_pointwise
from touchstone.conformance.faults._rows import F16, F32, Flaw, in_float32, plant_flaws


def build(act=acts.activate):
    """The op with `act(z, name)` for its function, on float32 tensors."""
    return lambda x, bias, *, activation="gelu": act(x if bias is None else x + bias, activation)


def instead(name, function):
    """The activations with `function` in the place of the one called `name`."""
    return lambda z, chosen: function(z) if chosen == name else acts.activate(z, chosen)


def _square_overflows(z):
    n = (1 + torch.exp(z)).square()
    return z * (n - 1) / (n + 1)


FLAWS = {
    "gelu_by_tanh": Flaw(
        "formula", "gelu is its tanh form, up to 5e-4 away", acts.replaced("gelu", "gelu_tanh"), F32 + F16
    ),
    "tanh_form_by_erf": Flaw(
        "formula", "gelu_tanh is the exact gelu, up to 5e-4 away", acts.replaced("gelu_tanh", "gelu"), F32 + F16
    ),
    "square_for_cube": Flaw("formula", "the cube in gelu_tanh is a square", acts.square_for_cube),
    "tanh_by_exponentials": Flaw(
        "overflow", "the tanh of gelu_tanh is infinity over infinity for large x", acts.tanh_by_exp
    ),
    "sigmoid_by_exponential": Flaw("overflow", "silu is e^x / (1 + e^x), NaN for large x", acts.sigmoid_by_exp),
    "mish_by_a_square": Flaw(
        "overflow", "mish squares 1 + e^x, infinite from 44 on", instead("mish", _square_overflows)
    ),
    "quick_factor_rounded": Flaw(
        "scale",
        "the factor of quick_gelu is 1.7",
        instead("quick_gelu", lambda z: z * torch.sigmoid(1.7 * z)),
        F32 + F16,
    ),
    "relu_swallows_nan": Flaw(
        "special", "relu of NaN is 0", instead("relu", lambda z: torch.where(z > 0, z, torch.zeros_like(z)))
    ),
    "leaky_relu": Flaw("formula", "relu leaves a hundredth of what is below 0", acts.leaky_relu),
    "elu_without_one": Flaw(
        "formula",
        "elu is exp(x) below 0: the 1 is not taken off",
        instead("elu", lambda z: torch.where(z > 0, z, z.exp())),
    ),
    "hardswish_unclipped": Flaw(
        "formula", "hardswish is x·(x + 3)/6 everywhere", instead("hardswish", lambda z: z * (z + 3) / 6)
    ),
    "hardshrink_keeps_its_ends": Flaw(
        "formula",
        "hardshrink leaves 0.5 and -0.5 as they are",
        instead("hardshrink", lambda z: torch.where(z.abs() < 0.5, torch.zeros_like(z), z)),
    ),
    "hardshrink_is_soft": Flaw(
        "formula", "hardshrink takes 0.5 off what it keeps", instead("hardshrink", F.softshrink)
    ),
    "identity_is_relu": Flaw("formula", "identity cuts off what is below 0", acts.replaced("identity", "relu")),
}
plant_pointwise(globals(), build(), ("x", "bias"), ("bias",))
plant_flaws(globals(), FLAWS, build)
for _name, _about, _wrong in (
    ("bias_after_act", "the bias is added to the activation", lambda x, bias, act: act(x) + bias),
    ("bias_twice", "the bias is added twice", lambda x, bias, act: act(x + 2 * bias)),
    ("bias_subtracted", "the bias is taken off", lambda x, bias, act: act(x - bias)),
):

    def _with_bias(x, bias, *, activation="gelu", wrong=_wrong):
        def act(z):
            return acts.activate(z, activation)

        return act(x) if bias is None else wrong(x, bias, act)

    plant(globals(), _name, in_float32(_with_bias), _about, "weights")


@known_good
def stored(x, bias, *, activation="gelu"):
    """x + bias is rounded to the dtype before the activation, as two kernels do it"""
    z = x if bias is None else x + bias
    return acts.activate(z.float(), activation).to(x.dtype).contiguous()


@known_good
@in_float32
def other_forms(x, bias, *, activation="gelu"):
    """mish over e^-|x|, silu as a quotient, elu by expm1, gelu by erfc"""
    z = x if bias is None else x + bias
    e = torch.exp(-z.abs())
    above = torch.where(z >= 0, 1 + 2 * e, e * (e + 2))
    match activation:
        case "mish":
            return z * above / (above + torch.where(z >= 0, 2 * e * e, 2 + 0 * e))
        case "silu":
            return z / (1 + torch.exp(-z))
        case "elu":
            return torch.where(z > 0, z, torch.expm1(z))
        case "gelu":
            return z * torch.special.erfc(-z * 0.5**0.5) / 2
    return acts.activate(z, activation)


@known_good
@in_float32
def formulas(x, bias, *, activation="gelu"):
    """each by its formula, in exponentials that may overflow"""
    return acts.FORMULAS[activation](x if bias is None else x + bias)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {"bias_stride_ignored": Kernel("strides", "the stride of bias is taken to be 1", "OutOfBounds|values: ")}
