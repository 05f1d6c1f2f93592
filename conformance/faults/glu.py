"""Mutants and known-good kernels of glu(gate, up, *, activation): y = act(gate)·up, (rows, cols)."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._glu import ACT_FLAWS
from touchstone.conformance.faults._pointwise import plant_pointwise
from touchstone.conformance.faults._rows import F16, F32, in_float32, plant_flaws, through


def build(act=acts.activate):
    """The op with `act(z, name)` for its activation, on float32 tensors."""
    return lambda gate, up, *, activation="silu": act(gate, activation) * up


plant_pointwise(globals(), build(), ("gate", "up"), equivalent=("operands_flushed",))
plant_flaws(globals(), ACT_FLAWS, build)


@mutant("formula")
@in_float32
def halves_swapped(gate, up, *, activation="silu"):
    """the halves of the joined tensor are swapped: up is activated"""
    return acts.activate(up, activation) * gate


@mutant("formula")
@in_float32
def both_activated(gate, up, *, activation="silu"):
    """up is activated too"""
    return acts.activate(gate, activation) * acts.activate(up, activation)


@mutant("formula")
@in_float32
def activated_product(gate, up, *, activation="silu"):
    """the activation is that of the product"""
    return acts.activate(gate * up, activation)


@mutant("formula")
@in_float32
def sum_for_product(gate, up, *, activation="silu"):
    """up is added"""
    return acts.activate(gate, activation) + up


@mutant("formula")
@in_float32
def clamped(gate, up, *, activation="silu"):
    """gate and up are clamped to ±7, as some models have it"""
    return acts.activate(gate.clamp(max=7), activation) * up.clamp(-7, 7)


@mutant("special", dtypes=("float16",))
@in_float32
def saturated(gate, up, *, activation="silu"):
    """products beyond the largest float16 are that number"""
    return (acts.activate(gate, activation) * up).clamp(-65504, 65504)


@mutant("precision", dtypes=F32 + F16)
@in_float32
def act_in_bfloat16(gate, up, *, activation="silu"):
    """act(gate) is rounded to bfloat16 before the product"""
    return through(torch.bfloat16)(acts.activate(gate, activation)) * up


@mutant("strides")
def half_beside_the_gap(gate, up, *, activation="silu"):
    """up is taken to begin where gate's first row ends, also where rows are further apart"""
    if gate.stride(0) > gate.shape[1] > 1 and gate.shape[0] > 1:
        up = up.roll(1, -1)
    return build()(gate.float(), up.float(), activation=activation).to(gate.dtype).contiguous()


@known_good
def act_stored(gate, up, *, activation="silu"):
    """act(gate) is rounded to the dtype before the product"""
    return (acts.activate(gate.float(), activation).to(gate.dtype) * up).contiguous()


@known_good
@in_float32
def quotient(gate, up, *, activation="silu"):
    """silu as gate·up / (1 + e^-gate)"""
    if activation != "silu":
        return acts.activate(gate, activation) * up
    return gate / (1 + torch.exp(-gate)) * up


@known_good
@in_float32
def formulas(gate, up, *, activation="silu"):
    """each activation by its formula, in exponentials that may overflow"""
    return up * acts.FORMULAS[activation](gate)


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {
    "row_of_up_ignored": Kernel(
        "strides", "rows of up are taken to lie as far apart as those of gate", "OutOfBounds|values: "
    ),
    "act_of_up": Kernel("formula", "up is activated, and gate multiplied with it"),
}
