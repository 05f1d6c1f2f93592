"""attention_decode(q, k, v, lengths, *, scale): o and lse of a few queries over a cache of which each sequence has
filled lengths[b] rows; the others hold anything."""

import torch

from touchstone.conformance.contracts import attention
from touchstone.conformance.contracts._decode import (
    BEYOND_16_BITS,
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
from touchstone.conformance.contracts._laws import equals_op
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.contract import Also, Contract, Draw, Invalid, Operand, Output, Property, Regular
from touchstone.reference.attention_decode import torch_attention_decode

SIZES = [
    dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, Sk=seq_k, D=dim)
    for batch, heads_q, heads_kv, seq_q, seq_k, dim in [
        (3, 4, 2, 1, 24, 16),
        (1, 1, 1, 1, 1, 64),
        (2, 2, 1, 1, 0, 16),
        (2, 8, 1, 2, 96, 40),
        (5, 3, 3, 3, 5, 24),
        (2, 6, 2, 7, 12, 136),
        (9, 20, 4, 1, 3, 8),
        (1, 4, 2, 1, 3072, 8),
    ]
]
REGULAR = Regular(
    [
        dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=1, Sk=seq, D=dim)
        for batch, heads_q, heads_kv, seq, dim in [
            (2, 4, 4, 64, 64),
            (1, 4, 1, 128, 128),
            (4, 2, 1, 64, 128),
            (2, 8, 2, 64, 64),
            (2, 2, 2, 192, 64),
            (1, 8, 1, 64, 128),
            (1, 4, 4, 192, 64),
            (4, 1, 1, 64, 64),
        ]
    ]
)
OVER_TILES = dict(B=1, Hq=4, Hkv=2, Sq=1, Sk=602, D=8)
BEYOND_GRID = [dict(B=3, Hq=23001, Hkv=1, Sq=1, Sk=3, D=4)]
LARGE = [
    dict(B=batch, Hq=32, Hkv=heads, Sq=1, Sk=seq, D=128)
    for batch, heads, seq in [(64, 8, 4096), (16, 8, 16384), (1, 8, 131072), (16, 32, 4096)]
]
CACHE = tuple(name for name in layouts.HEADS if name not in layouts.BROADCASTS)


def expect(inputs, params, *, dtype, compute=None):
    """Each sequence is attention's causal answer over its own keys, with attention's bound."""
    q, k, v, lengths = (inputs[name] for name in ("q", "k", "v", "lengths"))
    o, lse = torch_attention_decode(q, k, v, lengths, **params)

    def bound(b, length):
        return over_own_keys(q, k, v, b, length, params["scale"], dtype=dtype, compute=compute)

    return by_sequence(o, lse, lengths, bound)


def _family(make):
    def family(draw: Draw):
        q, k, v = make(draw)
        lengths = lengths_of(draw.size["B"], draw.size["Sk"])
        for b, length in enumerate(lengths):
            v[b, :, max(0, length - 1) : length] += 3  # the last key counts
        return {"q": q, "k": k, "v": v, "lengths": torch.tensor(lengths, dtype=torch.float64)}

    return family


def equal_scores(draw):
    """q = 0: where the keys are as many as a power of two no probability is rounded, and a result that is cut shows."""
    q, k, v = attention.heads(draw)
    return torch.zeros_like(q), k, v


def _valid(case) -> bool:
    size = case.size
    if 0 in size.values():
        return case.values == "normal"
    if case.values == "growing_keys" and case.param["scale"] == 0:
        return False
    return size["Sk"] > 1 or case.values in ("normal", "large")


def _pairs(size) -> float:
    """Queries times the keys of their sequences."""
    return size["Hq"] * size["Sq"] * keys_of(size)


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["Hkv"] * keys_of(size)
    return 2 * (queries + keys) * size["D"] * item + 4 * (queries + size["B"])


def _filled(arguments, case):
    """The cache full of keys."""
    full = {name: arguments[name].nan_to_num(0.5) for name in ("k", "v")}
    return {**arguments, **full, "lengths": torch.full_like(arguments["lengths"], case.size["Sk"])}


def _of_attention(exact, case):
    """attention's causal answer."""
    params = {"causal": True, "scale": exact["scale"]}
    return attention.expect({name: exact[name] for name in ("q", "k", "v")}, params, dtype=case.torch_dtype)


WIDTHS = {**attention.WIDTHS, 80: "float32"}
ALSO = {
    "one_query_of_groups": Also(dict(B=3, Hq=24, Hkv=2, Sq=1, Sk=33, D=96), dtype="float16"),
    "wide_heads": Also(dict(B=3, Hq=4, Hkv=2, Sq=3, Sk=40, D=160), dtype="bfloat16"),
    **attention.of_widths(dict(B=3, Hq=2, Hkv=1, Sq=2, Sk=40), WIDTHS),
    "many_keys": Also(  # 4161 of them
        dict(B=1, Hq=2, Hkv=1, Sq=1, Sk=6241, D=16), _family(attention.small_addends), dtype="float16"
    ),
    "low_weights": Also(dict(B=1, Hq=2, Hkv=1, Sq=1, Sk=6241, D=16), _family(attention.low_weights)),
    "equal_scores": Also(dict(B=3, Hq=4, Hkv=2, Sq=1, Sk=96, D=16), _family(equal_scores), dtype="float16"),
    "low_scores": Also(dict(B=3, Hq=4, Hkv=2, Sq=1, Sk=24, D=16), _family(attention.far_below)),
    # 513 of them: than whole tiles, than whole parts
    "one_key_more": Also(dict(B=1, Hq=2, Hkv=1, Sq=1, Sk=769, D=16), "growing_keys", {"scale": -0.3}),
    "keys_beyond_16_bits": Also(dict(B=1, Hq=1, Hkv=1, Sq=1, Sk=BEYOND_16_BITS, D=8)),
    # the last key, in a tile of its own, is seen by one query of three
    "queries_before_a_tile": Also(dict(B=1, Hq=2, Hkv=1, Sq=3, Sk=769, D=16)),
    # one of the caches, of no whole tiles or equal parts
    "full_in_several_tiles": Also(dict(B=3, Hq=2, Hkv=1, Sq=1, Sk=643, D=16)),
}
contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", CACHE, garbage=beyond("k"), unused="rows from lengths on"),
        "v": Operand("B Hkv Sk D", CACHE, garbage=beyond("v"), unused="rows from lengths on"),
        "lengths": Operand("B", ("contiguous", "step", "offset"), torch.int32, fixed=True),
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=OVER_TILES,
    values={
        name: _family(make)
        for name, make in {
            "normal": attention.heads,
            "growing_keys": attention.growing_keys,
            "large": attention.large,
            "shifted_negative": attention.shifted_negative,
            "cancelling": attention.cancelling,
        }.items()
    },
    params={"scale": (None, 0.21, -0.3, 0.0)},
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=LARGE,
    flops=lambda size, param: 4 * _pairs(size) * size["D"] + 1,
    calls=lambda size, param: _pairs(size),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", spoil("v", lambda v: v[:, :, 1:]), ValueError, r"\bv\b"),
        Invalid("heads of q no multiple", spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("q is float64", spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v has another dtype", spoil("v", torch.Tensor.half), TypeError, r"\bv\b"),
        Invalid("lengths are int64", spoil("lengths", torch.Tensor.long), TypeError, r"\blengths\b.*int64"),
        Invalid("lengths of one more", spoil("lengths", lambda t: torch.cat([t, t[:1]])), ValueError, r"\blengths\b"),
        Invalid("lengths is None", spoil("lengths", lambda t: None), TypeError, r"\blengths\b"),
        Invalid("k is elsewhere", spoil("k", lambda k: k.to("meta")), ValueError, r"\bk\b.*meta"),
    ],
    properties=[
        Property("order of keys does not matter", order_of_keys("k", "v")),
        Property("sequences are independent", sequences_are_independent),
        nothing_is_left_of_caches("k", "v"),
        equals_op("attention where the cache is full", _filled, _of_attention),
    ],
)


def _sdpa(q, k, v, lengths, scale, **_):
    seq, queries = k.shape[2], q.shape[2]
    last = torch.arange(queries, device=q.device)[:, None] + lengths[:, None, None, None] - queries
    seen = torch.arange(seq, device=q.device) <= last
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return {"o": o}


bench = Bench(baselines=[eager("F.scaled_dot_product_attention", _sdpa)], independent_axes=(("B",), ("Hq", "Hkv")))
