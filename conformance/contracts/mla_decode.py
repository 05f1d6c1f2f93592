"""mla_decode(q, cache, lengths, *, dim_v, scale): o and lse of a few queries over a cache of latents, of which each
sequence has filled lengths[b] rows; a row is a key of W columns, and its first dim_v are the value."""

import math

import torch

from touchstone.conformance.contracts._decode import (
    BEYOND_16_BITS,
    apart,
    beyond,
    by_sequence,
    keys_of,
    lengths_of,
    nothing_is_left_of_caches,
    order_of_keys,
    over_own_keys,
    sequences_are_independent,
    spoil,
)
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.contract import Also, Contract, Draw, From, Invalid, Operand, Output, Property, Regular
from touchstone.reference.mla_decode import torch_mla_decode

AXES = ("B", "H", "Sq", "Sk", "W", "V")
SIZES = [
    dict(zip(AXES, size, strict=True))
    for size in [
        (3, 4, 1, 24, 24, 16),
        (1, 1, 1, 1, 64, 64),
        (2, 2, 1, 0, 24, 16),
        (2, 10, 2, 96, 40, 24),
        (5, 3, 3, 5, 72, 65),
        (2, 3, 7, 12, 40, 17),
        (9, 20, 1, 3, 12, 8),
        (1, 2, 1, 3072, 12, 8),
        (1, 2, 1, 18, 576, 512),
    ]
]
REGULAR = Regular(
    [
        dict(zip(AXES, size, strict=True))
        for size in [
            (2, 16, 1, 64, 576, 512),
            (1, 16, 1, 128, 576, 512),
            (4, 16, 1, 64, 192, 128),
            (2, 32, 1, 64, 192, 128),
            (1, 16, 1, 192, 192, 128),
            (2, 16, 1, 128, 192, 128),
            (1, 64, 1, 64, 192, 128),
            (1, 32, 1, 64, 576, 512),
        ]
    ]
)
OVER_TILES = dict(zip(AXES, (1, 2, 1, 602, 12, 8), strict=True))
BEYOND_GRID = [dict(zip(AXES, (3, 23001, 1, 3, 6, 4), strict=True))]
LARGE = [
    dict(zip(AXES, size, strict=True))
    for size in [
        (64, 16, 1, 4096, 576, 512),
        (16, 128, 1, 4096, 576, 512),
        (1, 16, 1, 131072, 576, 512),
        (16, 16, 2, 16384, 576, 512),
    ]
]
CACHE = ("contiguous", "transposed", "sliced", "step", "offset")


def expect(inputs, params, *, dtype, compute=None):
    """Each sequence is attention's causal answer over its own rows as keys and as values: dim_v columns of it."""
    q, rows, lengths = inputs["q"], inputs["cache"][:, None], inputs["lengths"]
    dim_v = params["dim_v"]
    o, lse = torch_mla_decode(**inputs, **params)

    def bound(b, length):
        found = over_own_keys(q, rows, rows, b, length, params["scale"], dtype=dtype, compute=compute)
        of_o = found["o"]
        of_o.parts = [(within(terms), within(condition)) for terms, condition in of_o.parts]
        of_o.rounding, of_o.extra = within(of_o.rounding), within(of_o.extra)
        return found

    def within(value):
        """What concerns the columns of the values."""
        return value[..., :dim_v] if isinstance(value, torch.Tensor) and value.ndim else value

    return by_sequence(o, lse, lengths, bound)


def _family(make):
    def family(draw: Draw):
        q, cache = make(draw)
        lengths = lengths_of(draw.size["B"], draw.size["Sk"])
        for b, length in enumerate(lengths):
            cache[b, max(0, length - 1) : length, : draw.size["V"]] += 1.5  # the last key counts
        return {"q": q, "cache": cache, "lengths": torch.tensor(lengths, dtype=torch.float64)}

    return family


def _normal(draw: Draw):
    return draw.normal(draw.shape("q")), draw.normal(draw.shape("cache"))


def _growing_keys(draw: Draw):
    """Scores rise along the keys, and so do the keys' norms: the running maximum changes in every tile, and where there
    are many keys, exp overflows under one that stays behind."""
    q, cache = _normal(draw)
    seq, width = cache.shape[1:]
    rise = (100 if seq > 64 else 12) / (0.7 * width * draw.param["scale"])
    ramp = torch.linspace(rise / 16, rise, seq, dtype=torch.float64).unsqueeze(-1)
    direction = draw.integers((width,), 0, 2) * 2 - 1
    return q * 0.5 + direction * 0.7, cache * 0.3 * ramp + direction * ramp


def _large(draw: Draw):
    """Scores of some hundreds: exp without the maximum subtracted overflows."""
    q, cache = _normal(draw)
    return q * 8, cache * 8


def _shifted_negative(draw: Draw):
    """All scores far from zero, below it where the scale is positive: padding with a score of 0 wins."""
    q, cache = _normal(draw)
    return q.abs() + 1, -(cache.abs() + 6)


def _cancelling(draw: Draw):
    """Values above zero over the first half of the keys and below over the second, with nearly equal scores."""
    q, cache = _normal(draw)
    cache = cache * 0.25 + 1
    cache[:, cache.shape[1] // 2 :] *= -1
    return (q - q.mean(-1, keepdim=True)) * 0.25, cache


def _equal_scores(draw: Draw):
    """q = 0: where a power of two of keys is seen, no probability is rounded, so that the rounding of o shows."""
    q, cache = _normal(draw)
    return q * 0, cache


def _valid(case) -> bool:
    size = case.size
    if 0 in size.values():
        return case.values == "normal"
    if case.values == "growing_keys" and case.param["scale"] == 0:
        return False
    return size["Sk"] > 1 or case.values in ("normal", "large")


def _pairs(size) -> float:
    """Queries times the keys of their sequences."""
    return size["H"] * size["Sq"] * keys_of(size)


def _bytes(size, param, item) -> float:
    queries = size["B"] * size["H"] * size["Sq"]
    return (queries * (size["W"] + size["V"]) + keys_of(size) * size["W"]) * item + 4 * (queries + size["B"])


def _columns_change_places(call, arguments, outputs, case):
    """So do those of o, as far as they are columns of the value, and lse stays."""
    dim_v = arguments["dim_v"]
    latent = torch.randperm(dim_v, generator=case.rng("latent")).to(arguments["q"].device)
    rotary = torch.randperm(case.size["W"] - dim_v, generator=case.rng("rotary")).to(latent.device) + dim_v
    order = torch.cat([latent, rotary])
    again = call(**{**arguments, "q": arguments["q"][..., order], "cache": arguments["cache"][..., order]})
    return apart((outputs[0][..., latent], outputs[1]), again, "another order of columns")


def _small_addends(draw: Draw):
    """Values of which the first is large and the others are small: of many keys each tile adds less than half a unit of
    what is there in 16 bits. Scores come from the other columns, and are about equal."""
    q, cache = _normal(draw)
    latent = draw.size["V"]
    q[..., :latent] = 0
    cache[..., :latent] = values.small_addend(cache.shape[1])
    cache[:, :1, :latent] = values.LARGE_ADDEND
    cache[:, :1, latent:] = 0
    return q * 0.25, cache


def _low_scores(draw: Draw):
    """All scores below -5e4, of which the first key's is larger than the others by as much, and all powers of two but
    for the scale: a finite number in place of -inf is larger."""
    q, cache = _normal(draw)
    whole = 2.0 ** math.ceil(math.log2(5.5e4 / draw.param["scale"]))
    q[...], q[..., -1] = 0, 256
    cache[..., -1] = -2 * whole / 256
    cache[:, :1, -1] /= 2
    return q, cache


def _low_weights(draw: Draw):
    """Scores as values.low_weights has them."""
    q, cache = _normal(draw)
    q[...] = 0
    q[..., -1] = 2
    cache[..., -1] = values.low_weights(draw, cache.shape[:-1]) / 2 / draw.param["scale"]
    return q, cache


ALSO = {
    "many_heads": Also(dict(zip(AXES, (3, 24, 1, 33, 120, 96), strict=True)), dtype="float16"),
    "many_keys": Also(  # 4161 of them
        dict(zip(AXES, (1, 2, 1, 6241, 24, 16), strict=True)), _family(_small_addends), dtype="float16"
    ),
    "low_weights": Also(dict(zip(AXES, (1, 2, 1, 6241, 24, 16), strict=True)), _family(_low_weights)),
    "low_scores": Also(dict(zip(AXES, (3, 3, 1, 24, 24, 16), strict=True)), _family(_low_scores)),
    "one_key_more": Also(dict(zip(AXES, (1, 2, 1, 769, 24, 16), strict=True))),  # 513 of them
    "growing_in_parts": Also(dict(zip(AXES, (1, 2, 1, 769, 24, 16), strict=True)), "growing_keys"),
    "keys_beyond_16_bits": Also(dict(zip(AXES, (1, 1, 1, BEYOND_16_BITS, 12, 8), strict=True))),
    # the last key, in a tile of its own, is seen by one query of three
    "queries_before_a_tile": Also(dict(zip(AXES, (1, 2, 3, 769, 24, 16), strict=True))),
    # one of the caches, of no whole tiles or equal parts
    "full_in_several_tiles": Also(dict(zip(AXES, (3, 2, 1, 643, 24, 16), strict=True))),
    "wide_rotary": Also(dict(zip(AXES, (3, 3, 1, 24, 168, 72), strict=True))),  # 96 columns beside those of the values
}
contract = Contract(
    operands={
        "q": Operand("B H Sq W", layouts.HEADS),
        "cache": Operand("B Sk W", CACHE, garbage=beyond("cache"), unused="rows from lengths on"),
        "lengths": Operand("B", ("contiguous", "step", "offset"), torch.int32, fixed=True),
    },
    outputs={"o": Output("B H Sq V"), "lse": Output("B H Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=OVER_TILES,
    values={
        "normal": _family(_normal),
        "growing_keys": _family(_growing_keys),
        "large": _family(_large),
        "shifted_negative": _family(_shifted_negative),
        "cancelling": _family(_cancelling),
        "equal_scores": _family(_equal_scores),
    },
    params={"dim_v": (From(lambda case: case.size["V"]),), "scale": (0.21, -0.3, 0.0)},
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=LARGE,
    flops=lambda size, param: 2 * _pairs(size) * (size["W"] + size["V"]) + 1,
    calls=lambda size, param: _pairs(size),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("cache has another width", spoil("cache", lambda c: c[..., 1:]), ValueError, r"\bcache\b"),
        Invalid("cache has an axis of heads", spoil("cache", lambda c: c[:, None]), ValueError, r"\bcache\b"),
        Invalid("dim_v is 0", spoil("dim_v", lambda n: 0), ValueError, r"\bdim_v\b"),
        Invalid("dim_v is wider than the cache", spoil("dim_v", lambda n: 577), ValueError, r"\bdim_v\b.*577"),
        Invalid("q is float64", spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("cache has another dtype", spoil("cache", torch.Tensor.half), TypeError, r"\bcache\b"),
        Invalid("lengths are int64", spoil("lengths", torch.Tensor.long), TypeError, r"\blengths\b.*int64"),
        Invalid("lengths of one more", spoil("lengths", lambda t: torch.cat([t, t[:1]])), ValueError, r"\blengths\b"),
        Invalid("lengths is None", spoil("lengths", lambda t: None), TypeError, r"\blengths\b"),
        Invalid("cache is elsewhere", spoil("cache", lambda c: c.to("meta")), ValueError, r"\bcache\b.*meta"),
    ],
    properties=[
        Property("order of keys does not matter", order_of_keys("cache")),
        Property("order of columns does not matter", _columns_change_places),
        Property("sequences are independent", sequences_are_independent),
        nothing_is_left_of_caches("cache"),
    ],
)


def _sdpa(q, cache, lengths, dim_v, scale, **_):
    keys, queries = cache[:, None], q.shape[2]
    last = torch.arange(queries, device=q.device)[:, None] + lengths[:, None, None, None] - queries
    seen = torch.arange(cache.shape[1], device=q.device) <= last
    values = keys[..., :dim_v]
    return {
        "o": torch.nn.functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=seen, scale=scale, enable_gqa=True
        )
    }


bench = Bench(baselines=[eager("F.scaled_dot_product_attention", _sdpa)], independent_axes=(("B",), ("H",)))
