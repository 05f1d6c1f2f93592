"""Mutants and known-good kernels of glu_backward(gate, up, dy, *, activation): dgate, dup, (rows, cols) each."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults._glu import ACT_FLAWS
from touchstone.conformance.faults._pointwise import plant_pointwise
from touchstone.conformance.faults._rows import F16, F32, in_float32, plant_flaws, through
from touchstone.conformance.faults._slopes import SLOPE_FLAWS


def build(act=acts.activate, derivative=acts.derivative):
    """The op with `act(z, name)` and its `derivative(z, name)`, on float32 tensors."""

    def gradients(gate, up, dy, *, activation="silu"):
        return dy * up * derivative(gate, activation), dy * act(gate, activation)

    return gradients


plant_pointwise(globals(), build(), ("gate", "up", "dy"), equivalent=("operands_flushed",))
plant_flaws(globals(), {f"dup_{name}": flaw for name, flaw in ACT_FLAWS.items()}, lambda act: build(act))
plant_flaws(globals(), SLOPE_FLAWS, lambda derivative: build(derivative=derivative))


@mutant("formula")
@in_float32
def dgate_without_up(gate, up, dy, *, activation="silu"):
    """dgate lacks the factor up"""
    return dy * acts.derivative(gate, activation), dy * acts.activate(gate, activation)


@mutant("formula")
@in_float32
def gradients_swapped(gate, up, dy, *, activation="silu"):
    """dgate and dup change places"""
    return build()(gate, up, dy, activation=activation)[::-1]


@mutant("accumulator")
def gate_overwritten(gate, up, dy, *, activation="silu"):
    """dgate is written over gate before dup is computed from it"""
    dgate, _ = in_float32(build())(gate, up, dy, activation=activation)
    return dgate, in_float32(build())(dgate, up, dy, activation=activation)[1]


@mutant("precision", dtypes=F32 + F16)
@in_float32
def dup_through_bfloat16(gate, up, dy, *, activation="silu"):
    """act(gate) is rounded to bfloat16 before dup is computed from it"""
    dgate, _ = build()(gate, up, dy, activation=activation)
    return dgate, dy * through(torch.bfloat16)(acts.activate(gate, activation))


@known_good
def act_stored(gate, up, dy, *, activation="silu"):
    """act(gate) is rounded to the dtype before dup is computed from it"""
    dgate, _ = in_float32(build())(gate, up, dy, activation=activation)
    return dgate, (dy * acts.activate(gate.float(), activation).to(gate.dtype)).contiguous()


@known_good
def factors_stored(gate, up, dy, *, activation="silu"):
    """act(gate) and its gradient dy·up are both rounded to the dtype, as autograd of act(gate)·up stores them"""
    h = (dy.float() * up.float()).to(dy.dtype).float()
    dgate, _ = build()(gate.float(), torch.ones_like(h), h, activation=activation)
    dup = dy.float() * acts.activate(gate.float(), activation).to(gate.dtype).float()
    return dgate.to(gate.dtype).contiguous(), dup.to(gate.dtype).contiguous()


@known_good
@in_float32
def sum_of_terms(gate, up, dy, *, activation="silu"):
    """silu' as act(gate)·(1 - sigmoid) + sigmoid"""
    dgate, dup = build()(gate, up, dy, activation=activation)
    if activation == "silu":
        s = torch.sigmoid(gate)
        dgate = dy * (gate * s * (1 - s) + s) * up
    return dgate, dup


@known_good
def autograd(gate, up, dy, *, activation="silu"):
    """torch's automatic differentiation in float32"""
    found = acts.by_autograd(lambda g, u: acts.FUNCTIONS[activation](g) * u, dy, gate, up)
    return tuple(gradient.to(gate.dtype) for gradient in found)


# what kernels in several languages have in common: what is wrong with them, and what is found
KERNELS = {"dup_from_dgate": Kernel("accumulator", "dup is computed from dgate in the place of gate")}
