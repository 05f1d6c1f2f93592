"""Mutants and known-good kernels of attention_decode_int4(q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale):
o (B, Hq, Sq, D), lse (B, Hq, Sq) in float32."""

from functools import partial

import torch

from touchstone.conformance.faults import Kernel, attention_decode, known_good, mutant, plant, planted_in

EQUIVALENT = {"truncated": "a right kernel may round elements and o, which is as much as one result cut"}


def nibbles(codes):
    """(..., D/2) bytes -> (..., D) codes, the low nibble first."""
    codes = codes.int()
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2).float()


def spread(scales, width):
    """(..., G, 2) -> factors and shifts (..., width), each of its group's columns."""
    return scales.float().repeat_interleave(width // scales.shape[-2], -2).unbind(-1)


def elements(codes, scales, *, nibbles=nibbles, spread=spread, made=lambda code, factor, shift: code * factor + shift):
    """What the codes stand for, in float32; the keywords are what mutants change."""
    code = nibbles(codes)
    return made(code, *spread(scales, code.shape[-1]))


def attention_decode_int4(
    q,
    k_codes,
    k_scales,
    v_codes,
    v_scales,
    lengths,
    *,
    scale=None,
    by=attention_decode.attention_decode,
    of_keys=elements,
    of_values=elements,
    stored=lambda t, dtype: t,
):
    """attention_decode over the elements that the codes stand for."""
    k, v = stored(of_keys(k_codes, k_scales), q.dtype), stored(of_values(v_codes, v_scales), q.dtype)
    return by(q, k, v, lengths, scale=scale)


def _plant():
    """What is wrong, or right, with attention over any cache. The average of what lies beyond a length, NaN here, is no
    number; a result that is cut is as near as one whose elements were rounded."""
    for one in planted_in(attention_decode, "attention_decode"):
        if one.name not in ("no_key_averages_all", "result_truncated"):
            fn = partial(attention_decode_int4, by=one.make())
            plant(globals(), one.name, fn, one.about, one.kind, dtypes=one.dtypes)


_plant()


def _high_first(codes):
    codes = codes.int()
    return torch.stack([codes >> 4, codes & 15], -1).flatten(-2).float()


def _halves(codes):
    codes = codes.int()
    return torch.cat([codes & 15, codes >> 4], -1).float()


def _signed(codes):
    return (nibbles(codes) + 8) % 16 - 8


def _both(change):
    """The op with the elements of keys and of values made by `change`."""

    def fn(*operands, **params):
        return attention_decode_int4(*operands, **params, of_keys=change, of_values=change)

    return fn


def _neighbour(scales, width):
    return spread(scales.roll(-1, -2), width)


def _first_group(scales, width):
    return spread(scales[..., :1, :], width)


def _groups_of_eight(scales, width):
    group = torch.arange(width, device=scales.device) // 8 % scales.shape[-2]
    return scales.float()[..., group, :].unbind(-1)


def _first_row(scales, width):
    return spread(scales[:, :, :1].expand(scales.shape), width)


def _next_row(scales, width):
    return spread(scales.roll(1, 2).nan_to_num(0.0), width)


FLAWS = {
    "nibbles_swapped": ("formula", "the high nibble is the even column's", partial(elements, nibbles=_high_first)),
    "nibbles_in_halves": ("formula", "low nibbles are the first half of a row", partial(elements, nibbles=_halves)),
    "signed_codes": ("formula", "codes are in two's complement", partial(elements, nibbles=_signed)),
    "zero_at_eight": ("formula", "8 is subtracted from codes", partial(elements, made=lambda c, f, s: (c - 8) * f + s)),
    "no_shift": ("formula", "the shift is left out", partial(elements, made=lambda c, f, s: c * f)),
    "shift_as_zero_point": (
        "formula",
        "the shift is added before the factor",
        partial(elements, made=lambda c, f, s: (c + s) * f),
    ),
    "factor_of_0_is_1": (
        "formula",
        "a factor of 0 is taken for 1, as where one is divided by it",
        partial(elements, made=lambda c, f, s: c * f.masked_fill(f == 0, 1.0) + s),
    ),
    "factor_and_shift_swapped": (
        "formula",
        "factor and shift change places",
        partial(elements, made=lambda c, f, s: c * s + f),
    ),
    "next_group": (
        "formula",
        "columns have the factor and shift of the next group",
        partial(elements, spread=_neighbour),
    ),
    "first_group": (
        "formula",
        "all columns have the factor and shift of group 0",
        partial(elements, spread=_first_group),
    ),
    "groups_of_eight": ("parameter", "groups are of 8 columns", partial(elements, spread=_groups_of_eight)),
    "scales_of_the_first_row": (
        "formula",
        "all rows have the factors and shifts of row 0",
        partial(elements, spread=_first_row),
    ),
    "scales_of_the_row_before": (
        "formula",
        "rows have the factors and shifts of the row before",
        partial(elements, spread=_next_row),
    ),
}
for _name, (_kind, _about, _part) in FLAWS.items():
    plant(globals(), _name, _both(_part), _about, _kind)


@mutant("formula")
def values_with_scales_of_keys(q, k_codes, k_scales, v_codes, v_scales, lengths, **params):
    """values have the factors and shifts of the keys"""
    return attention_decode_int4(q, k_codes, k_scales, v_codes, k_scales, lengths, **params)


@mutant("formula")
def keys_without_shift(*operands, **params):
    """the shift of the keys is left out, as if it moved all scores alike"""
    return attention_decode_int4(*operands, **params, of_keys=FLAWS["no_shift"][2])


@mutant("precision", dtypes=("float32", "float16"))
def elements_in_bf16(*operands, **params):
    """keys and values are stored in bfloat16"""
    return attention_decode_int4(*operands, **params, stored=lambda t, dtype: t.bfloat16().float())


@known_good
def stored_in_the_dtype(*operands, **params):
    """keys and values are made in float32 and stored in the dtype"""
    return attention_decode_int4(*operands, **params, stored=torch.Tensor.to)


@known_good
def rounded_twice(*operands, **params):
    """the product of code and factor is rounded to the dtype, and so is its sum with the shift"""

    def in_the_dtype(codes, scales):
        factor, shift = (t.to(scales.dtype) for t in spread(scales, 2 * codes.shape[-1]))
        return (nibbles(codes).to(scales.dtype) * factor + shift).float()

    return attention_decode_int4(*operands, **params, of_keys=in_the_dtype, of_values=in_the_dtype)


@known_good
def shifted_after_the_product(q, k_codes, k_scales, v_codes, v_scales, lengths, **params):
    """values meet the probabilities as codes times factors, and their shifts as a second sum"""
    wide = q.float()
    codes_alone = torch.stack([v_scales[..., 0], torch.zeros_like(v_scales[..., 1])], -1)
    o, lse = attention_decode_int4(wide, k_codes, k_scales, v_codes, codes_alone, lengths, **params)
    shifts = elements(torch.zeros_like(v_codes), v_scales)
    of_shifts, _ = attention_decode.attention_decode(wide, elements(k_codes, k_scales), shifts, lengths, **params)
    return (o + of_shifts).to(q.dtype), lse


# what kernels in several languages have in common: what is wrong with them, and what the emulator finds
KERNELS = {
    "parts": Kernel("known-good", "a part of the keys for each program, merged by their lse"),
    "one_key_too_many": Kernel("mask", "the first row beyond the length is a key too"),
    "merged_unweighted": Kernel("rescale", "the outputs of parts are averaged, whatever their lse"),
    "heads_modulo": Kernel("heads", "query head h reads key head h modulo their number"),
    "nibbles_swapped": Kernel("formula", "the high nibble is the even column's"),
    "no_shift": Kernel("formula", "the shift is left out"),
    "next_group": Kernel("formula", "columns have the factor and shift of the next group"),
    "values_with_scales_of_keys": Kernel("formula", "values have the factors and shifts of the keys"),
}
