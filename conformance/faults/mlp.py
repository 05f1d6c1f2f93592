"""Mutants and known-good kernels of mlp(x, w1, b1, w2, b2, *, activation): (M, D), (D, H), (H,), (H, N), (N,) -> (M,
N)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults import _activations as acts
from touchstone.conformance.faults import _dots as dots
from touchstone.conformance.spec.onednn import without_onednn


@known_good
def whole_hidden(
    x, w1, b1, w2, b2, *, activation="gelu", dot=dots.plain, second=None, act=acts.activate, hidden=torch.float32
):
    "the hidden tensor whole and in float32"
    z = dot(x, w1)
    h = act(z if b1 is None else z + b1.float(), activation).to(hidden)
    y = (second or dot)(h, w2)
    return (y if b2 is None else y + b2.float()).to(x.dtype)


@known_good
def hidden_stored(x, w1, b1, w2, b2, *, activation="gelu"):
    "two kernels: z, h and both products are stored in the input dtype"
    z = dots.plain(x, w1).to(x.dtype)
    h = acts.activate((z if b1 is None else z + b1).float(), activation).to(x.dtype)
    y = dots.plain(h, w2).to(x.dtype)
    return y if b2 is None else y + b2


@known_good
def hidden_tiles(x, w1, b1, w2, b2, *, activation="gelu", tile=24):
    "fused: a tile of hidden units at a time, from the last to the first"
    y = torch.zeros(x.shape[0], w2.shape[1]) if b2 is None else b2.float().repeat(x.shape[0], 1)
    for cut in reversed(dots.tiles(w1.shape[1], tile)):
        z = dots.backwards(x, w1[:, cut])
        y += dots.in_tiles(acts.activate(z if b1 is None else z + b1[cut].float(), activation), w2[cut])
    return y.to(x.dtype)


@known_good
@without_onednn()
def library(x, w1, b1, w2, b2, *, activation="gelu"):
    "F.linear and torch's activations in the operands' own dtype"
    h = acts.activate(F.linear(x, w1.t(), b1), activation)
    return F.linear(h, w2.t(), b2)


dots.plant_lower(globals(), whole_hidden)


@mutant("precision", dtypes=("float32", "float16"))
def hidden_in_bfloat16(x, w1, b1, w2, b2, *, activation="gelu"):
    "the hidden tensor is kept in bfloat16"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, hidden=torch.bfloat16)


@mutant("precision", dtypes=("float32",))
def hidden_in_float16(x, w1, b1, w2, b2, *, activation="gelu"):
    "the hidden tensor is kept in float16"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, hidden=torch.float16)


@mutant("precision", dtypes=("float16", "bfloat16"))
def y_accumulated_in_memory(x, w1, b1, w2, b2, *, activation="gelu"):
    "y is rounded to its dtype after every tile of hidden units"

    def stored(h, w2):
        return dots.added(h, w2, dots.tiles(h.shape[1]), x.dtype)

    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=stored)


@mutant("precision", dtypes=("float16", "bfloat16"))
def result_truncated(x, w1, b1, w2, b2, *, activation="gelu"):
    "the result is cut to the output dtype, not rounded"
    optional = [None if b is None else b.float() for b in (b1, b2)]
    y = whole_hidden(x.float(), w1, optional[0], w2, optional[1], activation=activation)
    return dots.truncated(y, x.dtype)


@mutant("weights")
def b1_ignored(x, w1, b1, w2, b2, *, activation="gelu"):
    "b1 is not added"
    return whole_hidden(x, w1, None, w2, b2, activation=activation)


@mutant("weights")
def b2_ignored(x, w1, b1, w2, b2, *, activation="gelu"):
    "b2 is not added"
    return whole_hidden(x, w1, b1, w2, None, activation=activation)


@mutant("weights")
def b1_first_element(x, w1, b1, w2, b2, *, activation="gelu"):
    "b1[0] is added to every hidden unit"
    first = None if b1 is None else b1[:1].expand(b1.shape)
    return whole_hidden(x, w1, first, w2, b2, activation=activation)


@mutant("weights")
def b2_of_first_tile(x, w1, b1, w2, b2, *, activation="gelu"):
    "every tile of columns adds the b2 of the first tile"
    first = None if b2 is None else b2[torch.arange(b2.shape[0]) % dots.TILE]
    return whole_hidden(x, w1, b1, w2, first, activation=activation)


@mutant("accumulator")
def b2_with_every_hidden_tile(x, w1, b1, w2, b2, *, activation="gelu"):
    "b2 is added once for every tile of hidden units"
    times = None if b2 is None else b2.float() * max(len(dots.tiles(w1.shape[1])), 1)
    return whole_hidden(x, w1, b1, w2, times, activation=activation)


@mutant("formula")
def b1_after_activation(x, w1, b1, w2, b2, *, activation="gelu"):
    "b1 is added after the activation"

    def act(z, name):
        return acts.activate(z, name) if b1 is None else acts.activate(z, name) + b1.float()

    return whole_hidden(x, w1, None, w2, b2, activation=activation, act=act)


@mutant("formula")
def no_activation(x, w1, b1, w2, b2, *, activation="gelu"):
    "there is no activation"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.identity)


@mutant("formula")
def result_activated(x, w1, b1, w2, b2, *, activation="gelu"):
    "the activation is applied to the result too"
    return acts.activate(whole_hidden(x, w1, b1, w2, b2, activation=activation), activation)


@mutant("formula")
def quick_gelu(x, w1, b1, w2, b2, *, activation="gelu"):
    "gelu is x·sigmoid(1.702·x)"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.quick_gelu)


@mutant("formula", dtypes=("float32",))
def tanh_for_erf(x, w1, b1, w2, b2, *, activation="gelu"):
    "gelu is computed as gelu_tanh"
    act = acts.replaced("gelu", "gelu_tanh")
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=act)


@mutant("formula", dtypes=("float32",))
def erf_for_tanh(x, w1, b1, w2, b2, *, activation="gelu"):
    "gelu_tanh is computed as gelu"
    act = acts.replaced("gelu_tanh", "gelu")
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=act)


@mutant("formula")
def square_for_cube(x, w1, b1, w2, b2, *, activation="gelu"):
    "gelu_tanh has x² where x³ belongs"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.square_for_cube)


@mutant("formula")
def leaky_relu(x, w1, b1, w2, b2, *, activation="gelu"):
    "relu lets a hundredth of negative values through"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.leaky_relu)


@mutant("parameter")
def silu_as_gelu(x, w1, b1, w2, b2, *, activation="gelu"):
    "silu falls through to gelu"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.replaced("silu", "gelu"))


@mutant("parameter")
def relu_as_gelu(x, w1, b1, w2, b2, *, activation="gelu"):
    "relu falls through to gelu"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.replaced("relu", "gelu"))


@mutant("overflow")
def tanh_by_exp(x, w1, b1, w2, b2, *, activation="gelu"):
    "tanh is (exp(2u) - 1) / (exp(2u) + 1), which overflows"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.tanh_by_exp)


@mutant("overflow")
def sigmoid_by_exp(x, w1, b1, w2, b2, *, activation="gelu"):
    "sigmoid is exp(x) / (1 + exp(x)), which overflows"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=acts.sigmoid_by_exp)


@mutant("scale")
def scaled_by_the_largest(x, w1, b1, w2, b2, *, activation="gelu"):
    "the hidden tensor is scaled by its largest element, which need not be above 0"

    def act(z, name):
        h = acts.activate(z, name)
        most = h.amax() if h.numel() else h.sum()
        return h / most * most

    return whole_hidden(x, w1, b1, w2, b2, activation=activation, act=act)


@mutant("tail")
def inner_tail_dropped(x, w1, b1, w2, b2, *, activation="gelu"):
    "the last partial tile of D is left out"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, dot=dots.tail_dropped, second=dots.plain)


@mutant("tail")
def hidden_tail_dropped(x, w1, b1, w2, b2, *, activation="gelu"):
    "the last partial tile of H is left out"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=dots.tail_dropped)


@mutant("tail")
def last_hidden_dropped(x, w1, b1, w2, b2, *, activation="gelu"):
    "the last hidden unit is left out"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=dots.last_dropped)


@mutant("tail")
def first_256_hidden(x, w1, b1, w2, b2, *, activation="gelu"):
    "only the first 256 hidden units, all that one block holds, are computed"

    def second(h, w2):
        return dots.first_tile_only(h, w2, 256)

    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=second)


@mutant("mask")
def padded_hidden_units(x, w1, b1, w2, b2, *, activation="gelu"):
    "lanes beyond H load the last hidden unit again and are not masked"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=dots.tail_clamped)


@mutant("accumulator")
def last_hidden_tile_only(x, w1, b1, w2, b2, *, activation="gelu"):
    "y holds the last tile of hidden units only: `acc =` for `acc +=`"
    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=dots.last_tile_only)


@mutant("accumulator")
def activated_partial_sums(x, w1, b1, w2, b2, *, activation="gelu"):
    "each half of D is activated on its own, before the halves are added"
    half = x.shape[1] // 2
    parts = [x.float().clone(), x.float().clone()]
    parts[0][:, half:] = 0
    parts[1][:, :half] = 0
    first, second = (whole_hidden(part, w1, b1, w2, None, activation=activation).float() for part in parts)
    return (first + second if b2 is None else first + second + b2.float()).to(x.dtype)


@mutant("race", stateful=True, deterministic=False)
def lost_updates():
    "tiles of hidden units are added to y without atomics, and one update in fifty is lost"
    second = dots.losing_updates()

    def mlp(x, w1, b1, w2, b2, *, activation="gelu"):
        return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=second)

    return mlp


@mutant("race")
def stale_hidden_tile(x, w1, b1, w2, b2, *, activation="gelu"):
    "the second product reads the shared hidden tile before the barrier: that of the row tile before"

    def second(h, w2):
        return dots.plain(torch.cat([h[:16], h[:-16]]) if h.shape[0] > 16 else h, w2)

    return whole_hidden(x, w1, b1, w2, b2, activation=activation, second=second)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS: dict[str, Kernel] = {}
