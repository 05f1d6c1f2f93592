"""Mutants and known-good kernels of mla_decode(q, cache, lengths, *, dim_v, scale): o (B, H, Sq, dim_v), lse (B, H, Sq)
in float32."""

import math
from functools import partial

import torch

from touchstone.conformance.faults import Kernel, attention_decode, known_good, mutant, plant, planted_in


def mla_decode(
    q,
    cache,
    lengths,
    *,
    dim_v,
    scale,
    by=attention_decode.attention_decode,
    queries=lambda q, dim_v: q,
    values=lambda rows, dim_v: rows,
    **options,
):
    """attention_decode with the rows of the cache as keys and as values; what mutants change are the keywords."""
    rows = cache[:, None]
    o, lse = by(queries(q, dim_v), rows, values(rows, dim_v), lengths, scale=scale, **options)
    return o[..., :dim_v].contiguous(), lse


def _plant():
    """What is wrong, or right, with attention over any cache. One of a single head has no other to be read, and the
    average of what lies beyond a length, NaN here, is no number."""
    for one in planted_in(attention_decode, "attention_decode"):
        if one.kind != "heads" and one.name != "no_key_averages_all":
            plant(globals(), one.name, partial(mla_decode, by=one.make()), one.about, one.kind, dtypes=one.dtypes)


_plant()


@mutant("formula")
def values_of_the_last_columns(*operands, **params):
    """the value is the last dim_v columns of a row"""

    def last(rows, dim_v):
        return rows.roll(dim_v - rows.shape[-1], -1)

    return mla_decode(*operands, **params, values=last)


@mutant("formula")
def rotary_part_left_out(*operands, **params):
    """the scores are those of the latent alone"""

    def latent(q, dim_v):
        return torch.cat([q[..., :dim_v], torch.zeros_like(q[..., dim_v:])], -1)

    return mla_decode(*operands, **params, queries=latent)


@mutant("formula")
def rotary_part_twice(*operands, **params):
    """the rotary part counts twice in the scores"""

    def twice(q, dim_v):
        return torch.cat([q[..., :dim_v], 2 * q[..., dim_v:].float()], -1)

    return mla_decode(*operands, **params, queries=twice)


@mutant("formula")
def rotary_part_of_the_first_head(*operands, **params):
    """every head has the rotary part of the first head's query"""

    def first(q, dim_v):
        return torch.cat([q[..., :dim_v], q[:, :1, :, dim_v:].expand(*q.shape[:3], -1)], -1)

    return mla_decode(*operands, **params, queries=first)


@mutant("formula")
def rotary_part_scaled_alone(*operands, **params):
    """the latent's part of the scores is not scaled"""
    scale = params["scale"] or 1.0

    def unscaled(q, dim_v):
        return torch.cat([q[..., :dim_v].float() / scale, q[..., dim_v:].float()], -1)

    return mla_decode(*operands, **{**params, "scale": scale}, queries=unscaled)


@mutant("parameter")
def scale_of_the_width(q, *operands, scale, **params):
    """the scale is 1/sqrt(W), whatever it is said to be"""
    return mla_decode(q, *operands, scale=1 / math.sqrt(q.shape[-1]), **params)


@mutant("scale")
def scale_of_the_latent(q, *operands, scale, dim_v):
    """the scale is that of dim_v columns among W: too large"""
    return mla_decode(q, *operands, scale=scale * math.sqrt(q.shape[-1] / dim_v), dim_v=dim_v)


@mutant("contract")
def as_wide_as_the_cache(q, cache, lengths, *, dim_v, scale):
    """o has W columns"""
    return mla_decode(q, cache, lengths, dim_v=cache.shape[-1], scale=scale)


@mutant("tail")
def whole_pieces_of_the_rotary_part(*operands, **params):
    """columns of the rotary part past a multiple of 16 are lost"""

    def whole(q, dim_v):
        kept = dim_v + (q.shape[-1] - dim_v) // 16 * 16
        return torch.cat([q[..., :kept], torch.zeros_like(q[..., kept:])], -1)

    return mla_decode(*operands, **params, queries=whole)


@mutant("tail")
def latent_of_256(*operands, **params):
    """columns of the value from 256 on are those of the first"""

    def narrow(rows, dim_v):
        return torch.cat([rows[..., :256], rows[..., : max(0, rows.shape[-1] - 256)]], -1)

    return mla_decode(*operands, **params, values=narrow)


@mutant("mask")
def lengths_in_tiles(q, cache, lengths, **params):
    """a length is rounded up to whole tiles of 8, as far as the cache goes"""

    def whole(lengths, b):
        return min(cache.shape[1], -(-int(lengths[b]) // 8) * 8)

    return mla_decode(q, cache, lengths, **params, length_of=whole)


@known_good
def probabilities_in_the_dtype(q, cache, lengths, *, dim_v, scale):
    """probabilities are stored in the dtype before they meet the values, as tensor cores need them"""

    def stored(s, v):
        m = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_full((*s.shape[:-1], 1), -math.inf)
        p = torch.exp(s - torch.where(m.isneginf(), 0.0, m))
        l = p.sum(-1, keepdim=True)
        o = (p.to(q.dtype).float()[..., None, :] @ v)[..., 0, :] / torch.where(l == 0, 1.0, l)
        return o, (m + torch.log(l))[..., 0]

    return mla_decode(q, cache, lengths, dim_v=dim_v, scale=scale, of_part=stored)


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "parts": Kernel("known-good", "a part of the keys for each program, merged by their lse"),
    "one_key_too_many": Kernel("mask", "the first row beyond the length is a key too"),
    "merged_unweighted": Kernel("rescale", "the outputs of parts are averaged, whatever their lse"),
    "no_rotary_part": Kernel("formula", "the scores are those of the latent alone"),
    "values_of_the_last_columns": Kernel("formula", "the value is the last dim_v columns of a row"),
    "first_length": Kernel("formula", "every sequence has the length of the first"),
    "first_head": Kernel("heads", "every head has the query of the first"),
}
