"""Mutants and known-good kernels of mlp_backward(x, w1, b1, w2, b2, dy, *, activation) -> dx, dw1, db1, dw2, db2."""

import math
from typing import Any

import torch

from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.faults import known_good, mutant

EQUIVALENT = {
    "swallows_nan": "which gradients a NaN reaches depends on how dead units are skipped; the contract leaves it open"
}


def _in_dtype(dtype, *gradients):
    return tuple(None if gradient is None else gradient.to(dtype) for gradient in gradients)


def _sum(t):
    return t.sum(0)


@known_good
def chain_rule(
    x,
    w1,
    b1,
    w2,
    b2,
    dy,
    *,
    activation="gelu",
    dot=dots.plain,
    over_rows=None,
    over_hidden=None,
    over_outer=None,
    slope=acts.derivative,
    act=acts.activate,
    row_sum=_sum,
    hidden=torch.float32,
):
    "z and h recomputed, everything whole and in float32"
    over_rows, over_hidden, over_outer = over_rows or dot, over_hidden or dot, over_outer or dot
    z = dot(x, w1) if b1 is None else dot(x, w1) + b1.float()
    dz = (over_outer(dy, w2.t()) * slope(z, activation)).to(hidden).float()
    dx, dw1 = over_hidden(dz, w1.t()), over_rows(x.t(), dz)
    dw2 = over_rows(act(z, activation).to(hidden).t(), dy)
    db1, db2 = None if b1 is None else row_sum(dz), None if b2 is None else row_sum(dy.float())
    return _in_dtype(x.dtype, dx, dw1, db1, dw2, db2)


@known_good
def stored_in_input_dtype(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "z, h, dh and dz are stored in the input dtype"
    z = dots.plain(x, w1).to(x.dtype)
    z = (z if b1 is None else z + b1).float()
    h = acts.activate(z, activation).to(x.dtype)
    dz = (dots.plain(dy, w2.t()).to(x.dtype).float() * acts.derivative(z, activation)).to(x.dtype)
    db1, db2 = None if b1 is None else dz.float().sum(0), None if b2 is None else dy.float().sum(0)
    gradients = dots.plain(dz, w1.t()), dots.split(x.t(), dz), db1, dots.split(h.t(), dy), db2
    return _in_dtype(x.dtype, *gradients)


@known_good
def autograd(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "torch's autograd in float32"
    operands = [None if t is None else t.detach().float() for t in (x, w1, b1, w2, b2)]
    with torch.enable_grad():
        leaves: list[Any] = [t if t is None else t.requires_grad_() for t in operands]
        z = leaves[0] @ leaves[1] if b1 is None else leaves[0] @ leaves[1] + leaves[2]
        y = acts.activate(z, activation) @ leaves[3]
        (y if b2 is None else y + leaves[4]).backward(dy.float())
    return _in_dtype(x.dtype, *(None if leaf is None else leaf.grad.contiguous() for leaf in leaves))


@known_good
def hidden_tiles(x, w1, b1, w2, b2, dy, *, activation="gelu", tile=24):
    "24 hidden units at a time, from the last to the first; rows are summed in short tiles"
    dx, dw1, dw2 = torch.zeros(x.shape), torch.zeros(w1.shape), torch.zeros(w2.shape)
    db1 = torch.zeros(w1.shape[1])
    ones = torch.ones(1, x.shape[0])
    for cut in reversed(dots.tiles(w1.shape[1], tile)):
        z = dots.in_tiles(x, w1[:, cut]) + (0 if b1 is None else b1[cut].float())
        dz = dots.in_tiles(dy, w2[cut].t()) * acts.derivative(z, activation)
        dx += dots.backwards(dz, w1[:, cut].t())
        dw1[:, cut], dw2[cut] = dots.in_tiles(x.t(), dz), dots.in_tiles(acts.activate(z, activation).t(), dy)
        db1[cut] = dots.in_tiles(ones, dz)[0]
    db2 = None if b2 is None else dots.in_tiles(ones, dy)[0]
    return _in_dtype(x.dtype, dx, dw1, None if b1 is None else db1, dw2, db2)


dots.plant_lower(globals(), chain_rule)


@mutant("precision", dtypes=("float32", "float16"))
def hidden_in_bfloat16(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "h and dz are rounded to bfloat16"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, hidden=torch.bfloat16)


@mutant("precision", dtypes=("float32",))
def hidden_in_float16(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "h and dz are rounded to float16"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, hidden=torch.float16)


@mutant("precision", dtypes=("float16", "bfloat16"))
def weight_gradients_in_memory(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dw1 and dw2 are rounded to their dtype after every eight rows"

    def over_rows(a, b):
        return dots.added(a, b, dots.tiles(a.shape[-1], 8), x.dtype)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=over_rows)


@mutant("precision", dtypes=("float16",))
def dx_in_memory(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dx is rounded to its dtype after every tile of hidden units"

    def over_hidden(a, b):
        return dots.added(a, b, dots.tiles(a.shape[-1]), x.dtype)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_hidden=over_hidden)


@mutant("precision", dtypes=("float16", "bfloat16"))
def bias_gradients_in_memory(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "db1 and db2 are rounded to their dtype after every row"

    def row_sum(t):
        return dots.added(torch.ones(1, t.shape[0]), t, dots.tiles(t.shape[0], 1), x.dtype)[0]

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, row_sum=row_sum)


@mutant("formula")
def no_derivative(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the activation's derivative is left out"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=lambda z, name: torch.ones_like(z))


@mutant("formula")
def derivative_at_h(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the activation's derivative is taken at h, not at z"

    def slope(z, name):
        return acts.derivative(acts.activate(z, name), name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("formula")
def activation_for_derivative(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dz is dh·act(z)"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=acts.activate)


@mutant("formula")
def dw2_from_z(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dw2 is zᵀ·dy"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, act=acts.identity)


@mutant("formula")
def phi_for_gelu(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of gelu lacks its second term, z·φ(z)"

    def slope(z, name):
        return torch.special.ndtr(z) if name == "gelu" else acts.derivative(z, name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("formula")
def sigmoid_for_silu(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of silu is sigmoid(z)"

    def slope(z, name):
        return torch.sigmoid(z) if name == "silu" else acts.derivative(z, name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("formula")
def silu_without_z(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of silu is σ·(1 + (1 - σ)), without z"

    def slope(z, name):
        s = torch.sigmoid(z)
        return s * (2 - s) if name == "silu" else acts.derivative(z, name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("formula", dtypes=("float32",))
def tanh_without_3(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of gelu_tanh has 0.044715·z² where three times that belongs"

    def slope(z, name):
        if name != "gelu_tanh":
            return acts.derivative(z, name)
        t = torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
        return (1 + t) / 2 + z * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 0.044715 * z * z) / 2

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("formula", dtypes=("float32",))
def tanh_slope_for_gelu(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of gelu is that of gelu_tanh"
    slope = acts.replaced("gelu", "gelu_tanh", acts.derivative)
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("special")
def relu_slope_1_at_0(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of relu at 0 is 1"

    def slope(z, name):
        return (z >= 0).float() if name == "relu" else acts.derivative(z, name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("overflow")
def tanh_by_exp(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "tanh in the derivative of gelu_tanh is (exp(2u) - 1) / (exp(2u) + 1), which overflows"

    def slope(z, name):
        if name != "gelu_tanh":
            return acts.derivative(z, name)
        e = torch.exp(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))
        t = (e - 1) / (e + 1)
        return (1 + t) / 2 + z * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * z * z) / 2

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("overflow")
def sigmoid_by_exp(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "sigmoid in the derivative of silu is exp(z) / (1 + exp(z)), which overflows"

    def slope(z, name):
        s = torch.exp(z) / (1 + torch.exp(z))
        return s * (1 + z * (1 - s)) if name == "silu" else acts.derivative(z, name)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("parameter")
def gelu_slope_as_relu(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the derivative of gelu is that of relu"
    slope = acts.replaced("gelu", "relu", acts.derivative)
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("parameter")
def always_gelu(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "activation is always gelu"
    return chain_rule(x, w1, b1, w2, b2, dy)


@mutant("weights")
def z_without_b1(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "z is recomputed without b1"
    zero = None if b1 is None else torch.zeros_like(b1)
    return chain_rule(x, w1, zero, w2, b2, dy, activation=activation)


@mutant("contract")
def zeros_for_none(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the gradient of a bias that is None is zeros, not None"
    dx, dw1, db1, dw2, db2 = chain_rule(x, w1, b1, w2, b2, dy, activation=activation)
    db1, db2 = x.new_zeros(w1.shape[1]) if db1 is None else db1, x.new_zeros(w2.shape[1]) if db2 is None else db2
    return dx, dw1, db1, dw2, db2


@mutant("formula")
def db1_from_dh(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "db1 is the sum of dh, not of dz"
    dx, dw1, db1, dw2, db2 = chain_rule(x, w1, b1, w2, b2, dy, activation=activation)
    dh = dots.plain(dy, w2.t())
    return dx, dw1, None if db1 is None else dh.sum(0).to(x.dtype), dw2, db2


@mutant("formula")
def dx_from_dh(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dx is dh·w1ᵀ, not dz·w1ᵀ"
    _, *others = chain_rule(x, w1, b1, w2, b2, dy, activation=activation)
    return dots.plain(dots.plain(dy, w2.t()), w1.t()).to(x.dtype), *others


@mutant("scale")
def mean_over_rows(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "db1 and db2 are means over the rows, not sums"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, row_sum=lambda t: t.sum(0) / max(t.shape[0], 1))


@mutant("accumulator")
def last_row_tile_only(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dw1 and dw2 hold the last tile of rows only, not the sum over all"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=dots.last_tile_only)


@mutant("accumulator")
def bias_gradients_of_last_tile(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "db1 and db2 hold the last tile of rows only: a store where an atomic add belongs"

    def row_sum(t):
        return t[max(t.shape[0] - 1, 0) // dots.TILE * dots.TILE :].sum(0)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, row_sum=row_sum)


@mutant("accumulator")
def dx_of_last_hidden_tile(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dx holds the last tile of hidden units only: `acc =` for `acc +=`"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_hidden=dots.last_tile_only)


@mutant("accumulator", stateful=True)
def weight_gradients_never_zeroed():
    "dw1 and dw2 are added to what the call before left"
    over_rows = dots.never_zeroed()

    def mlp_backward(x, w1, b1, w2, b2, dy, *, activation="gelu"):
        return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=over_rows)

    return mlp_backward


@mutant("race", stateful=True, deterministic=False)
def lost_weight_updates():
    "tiles of rows are added to dw1 and dw2 without atomics, and one update in fifty is lost"
    over_rows = dots.losing_updates()

    def mlp_backward(x, w1, b1, w2, b2, dy, *, activation="gelu"):
        return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=over_rows)

    return mlp_backward


@mutant("mask")
def padded_rows(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "lanes beyond M load the last row again and add to dw1 and dw2"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=dots.tail_clamped)


@mutant("overflow", dtypes=("float16",))
def slope_squares_in_float16(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "z² in the slope of gelu_tanh is taken in float16: 0 times infinity from 256 on"

    def slope(z, name):
        if name != "gelu_tanh":
            return acts.derivative(z, name)
        square = (z.half() * z.half()).float()
        near = square.isfinite()
        exact = acts.derivative(torch.where(near, z, 0.0), name)
        return torch.where(near, exact, math.nan)

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("overflow")
def sigmoid_slope_by_exp(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "the slope of silu has exp(z) / (1 + exp(z)), which overflows"

    def slope(z, name):
        if name != "silu":
            return acts.derivative(z, name)
        s = torch.exp(z) / (1 + torch.exp(z))
        return s * (1 + z * (1 - s))

    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, slope=slope)


@mutant("tail")
def row_tail_dropped(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dw1 and dw2 leave out the last partial tile of rows"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_rows=dots.tail_dropped)


@mutant("tail")
def last_row_dropped(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "db1 and db2 leave out the last row"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, row_sum=lambda t: t[:-1].sum(0))


@mutant("tail")
def hidden_tail_dropped(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dx leaves out the last partial tile of hidden units"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_hidden=dots.tail_dropped)


@mutant("tail")
def outer_tail_dropped(x, w1, b1, w2, b2, dy, *, activation="gelu"):
    "dh leaves out the last partial tile of N"
    return chain_rule(x, w1, b1, w2, b2, dy, activation=activation, over_outer=dots.tail_dropped)
