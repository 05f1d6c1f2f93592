"""Mutants and known-good kernels of gated_mlp(x, w_gate, w_up, w_down, *, activation): (M, D), (D, H)x2, (H, N) -> (M,
N)."""

import torch

from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.spec.onednn import without_onednn


@known_good
def whole_hidden(
    x,
    w_gate,
    w_up,
    w_down,
    *,
    activation="silu",
    dot=dots.plain,
    up=None,
    second=None,
    act=acts.activate,
    hidden=torch.float32,
    joined=torch.mul,
):
    "the hidden tensor whole and in float32"
    h = joined(act(dot(x, w_gate), activation), (up or dot)(x, w_up)).to(hidden)
    return (second or dot)(h, w_down).to(x.dtype)


@known_good
def hidden_stored(x, w_gate, w_up, w_down, *, activation="silu"):
    "gate, up, the activated gate and h are stored in the input dtype"
    gate, up = dots.plain(x, w_gate).to(x.dtype), dots.plain(x, w_up).to(x.dtype)
    h = acts.activate(gate.float(), activation).to(x.dtype) * up
    return dots.plain(h, w_down).to(x.dtype)


@known_good
def hidden_tiles(x, w_gate, w_up, w_down, *, activation="silu", tile=24):
    "fused: a tile of hidden units at a time, from the last to the first"
    y = torch.zeros(x.shape[0], w_down.shape[1])
    for cut in reversed(dots.tiles(w_gate.shape[1], tile)):
        gate, up = dots.backwards(x, w_gate[:, cut]), dots.split(x, w_up[:, cut])
        y += dots.in_tiles(acts.activate(gate, activation) * up, w_down[cut])
    return y.to(x.dtype)


@known_good
def packed_weights(x, w_gate, w_up, w_down, *, activation="silu"):
    "one float32 product with [w_gate | w_up]"
    gate, up = dots.plain(x, torch.cat([w_gate, w_up], 1)).chunk(2, 1)
    return dots.split(acts.activate(gate, activation) * up, w_down).to(x.dtype)


@known_good
@without_onednn()
def library(x, w_gate, w_up, w_down, *, activation="silu"):
    "torch's products and activations in the operands' own dtype"
    h = acts.activate(x @ w_gate, activation) * (x @ w_up)
    return h @ w_down


dots.plant_lower(globals(), whole_hidden)


@mutant("precision", dtypes=("float32", "float16"))
def hidden_in_bfloat16(x, w_gate, w_up, w_down, *, activation="silu"):
    "the hidden tensor is kept in bfloat16"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, hidden=torch.bfloat16)


@mutant("precision", dtypes=("float32",))
def hidden_in_float16(x, w_gate, w_up, w_down, *, activation="silu"):
    "the hidden tensor is kept in float16"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, hidden=torch.float16)


@mutant("precision", dtypes=("float16", "bfloat16"))
def y_accumulated_in_memory(x, w_gate, w_up, w_down, *, activation="silu"):
    "y is rounded to its dtype after every tile of hidden units"

    def stored(h, w_down):
        return dots.added(h, w_down, dots.tiles(h.shape[1]), x.dtype)

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=stored)


@mutant("formula")
def gate_and_up_swapped(x, w_gate, w_up, w_down, *, activation="silu"):
    "the activation is applied to x·w_up"
    return whole_hidden(x, w_up, w_gate, w_down, activation=activation)


@mutant("weights")
def up_for_gate(x, w_gate, w_up, w_down, *, activation="silu"):
    "w_up is read for w_gate too"
    return whole_hidden(x, w_up, w_up, w_down, activation=activation)


@mutant("weights")
def gate_for_up(x, w_gate, w_up, w_down, *, activation="silu"):
    "w_gate is read for w_up too"
    return whole_hidden(x, w_gate, w_gate, w_down, activation=activation)


@mutant("weights")
def up_projection_missing(x, w_gate, w_up, w_down, *, activation="silu"):
    "h is the activated gate alone, as in an ungated MLP"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, joined=lambda gate, up: gate)


@mutant("axis")
def packed_columns_interleaved(x, w_gate, w_up, w_down, *, activation="silu"):
    "of a packed [w_gate | w_up] the even columns are taken for the gate and the odd ones for up"
    packed = torch.cat([w_gate, w_up], 1)
    return whole_hidden(x, packed[:, ::2], packed[:, 1::2], w_down, activation=activation)


@mutant("bounds")
def packed_up_one_off(x, w_gate, w_up, w_down, *, activation="silu"):
    "of a packed [w_gate | w_up] the columns from H - 1 on are taken for up"
    packed, hidden = torch.cat([w_gate, w_up], 1), w_gate.shape[1]
    return whole_hidden(x, w_gate, packed[:, max(hidden - 1, 0) : 2 * hidden - 1], w_down, activation=activation)


@mutant("formula")
def both_activated(x, w_gate, w_up, w_down, *, activation="silu"):
    "x·w_up is activated too"

    def joined(gate, up):
        return gate * acts.activate(up, activation)

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, joined=joined)


@mutant("formula")
def product_activated(x, w_gate, w_up, w_down, *, activation="silu"):
    "the activation is applied to (x·w_gate)·(x·w_up)"

    def joined(gate, up):
        return acts.activate(gate * up, activation)

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.identity, joined=joined)


@mutant("formula")
def gate_not_activated(x, w_gate, w_up, w_down, *, activation="silu"):
    "the gate is not activated"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.identity)


@mutant("formula")
def gate_plus_up(x, w_gate, w_up, w_down, *, activation="silu"):
    "the activated gate is added to x·w_up, not multiplied by it"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, joined=torch.add)


@mutant("formula")
def sigmoid_for_silu(x, w_gate, w_up, w_down, *, activation="silu"):
    "silu is sigmoid(x), as in a plain GLU"

    def act(z, name):
        return torch.sigmoid(z) if name == "silu" else acts.activate(z, name)

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=act)


@mutant("formula")
def quick_gelu(x, w_gate, w_up, w_down, *, activation="silu"):
    "gelu is x·sigmoid(1.702·x)"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.quick_gelu)


@mutant("formula", dtypes=("float32",))
def tanh_for_erf(x, w_gate, w_up, w_down, *, activation="silu"):
    "gelu is computed as gelu_tanh"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.replaced("gelu", "gelu_tanh"))


@mutant("parameter")
def gelu_as_silu(x, w_gate, w_up, w_down, *, activation="silu"):
    "gelu falls through to silu"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.replaced("gelu", "silu"))


@mutant("parameter")
def relu_as_silu(x, w_gate, w_up, w_down, *, activation="silu"):
    "relu falls through to silu"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.replaced("relu", "silu"))


@mutant("overflow")
def tanh_by_exp(x, w_gate, w_up, w_down, *, activation="silu"):
    "tanh is (exp(2u) - 1) / (exp(2u) + 1), which overflows"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.tanh_by_exp)


@mutant("overflow")
def sigmoid_by_exp(x, w_gate, w_up, w_down, *, activation="silu"):
    "sigmoid is exp(x) / (1 + exp(x)), which overflows"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=acts.sigmoid_by_exp)


@mutant("tail")
def inner_tail_dropped(x, w_gate, w_up, w_down, *, activation="silu"):
    "the last partial tile of D is left out"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, dot=dots.tail_dropped, second=dots.plain)


@mutant("tail")
def inner_tail_of_up_dropped(x, w_gate, w_up, w_down, *, activation="silu"):
    "the last partial tile of D is left out of x·w_up"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, up=dots.tail_dropped)


@mutant("tail")
def hidden_tail_dropped(x, w_gate, w_up, w_down, *, activation="silu"):
    "the last partial tile of H is left out"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=dots.tail_dropped)


@mutant("tail")
def last_hidden_dropped(x, w_gate, w_up, w_down, *, activation="silu"):
    "the last hidden unit is left out"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=dots.last_dropped)


@mutant("mask")
def padded_hidden_units(x, w_gate, w_up, w_down, *, activation="silu"):
    "lanes beyond H load the last hidden unit again and are not masked"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=dots.tail_clamped)


@mutant("accumulator")
def last_hidden_tile_only(x, w_gate, w_up, w_down, *, activation="silu"):
    "y holds the last tile of hidden units only: `acc =` for `acc +=`"
    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=dots.last_tile_only)


@mutant("accumulator")
def gate_of_last_inner_tile(x, w_gate, w_up, w_down, *, activation="silu"):
    "the gate's accumulator is overwritten by every tile of D, that of up is not"
    kernel = dict(activation=activation, dot=dots.last_tile_only, up=dots.plain, second=dots.plain)
    return whole_hidden(x, w_gate, w_up, w_down, **kernel)


@mutant("race", stateful=True, deterministic=False)
def lost_updates():
    "tiles of hidden units are added to y without atomics, and one update in fifty is lost"
    second = dots.losing_updates()

    def gated_mlp(x, w_gate, w_up, w_down, *, activation="silu"):
        return whole_hidden(x, w_gate, w_up, w_down, activation=activation, second=second)

    return gated_mlp


@mutant("overflow")
def gates_end_at_1000(x, w_gate, w_up, w_down, *, activation="silu"):
    "gates are clamped to 1000"

    def act(z, name):
        return acts.activate(z.clamp(-1000, 1000), name)

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=act)


@mutant("scale")
def scaled_by_the_largest(x, w_gate, w_up, w_down, *, activation="silu"):
    "the gates are scaled by the largest, which need not be above 0"

    def act(z, name):
        h = acts.activate(z, name)
        most = h.amax() if h.numel() else h.sum()
        return h / most * most

    return whole_hidden(x, w_gate, w_up, w_down, activation=activation, act=act)
