"""attention_decode_int4(q, k_codes, k_scales, v_codes, v_scales, lengths, *, scale): o and lse of a few queries over a
cache of keys and values of four bits each, of which each sequence has filled lengths[b] rows.

The answer is that of the numbers that the codes stand for: how they were quantised is no error of a kernel.
"""

from dataclasses import replace

import torch

from touchstone.conformance.contracts._attention import probabilities, stack
from touchstone.conformance.contracts._bounds_dots import combine, gathered, lossy
from touchstone.conformance.contracts._decode import (
    BEYOND_16_BITS,
    NAMES,
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
from touchstone.conformance.contracts.attention import softmax_scale
from touchstone.conformance.contracts.attention_decode import WIDTHS
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.contract import Also, Contract, Draw, Invalid, Operand, Output, Property, Regular
from touchstone.reference._nibbles import torch_elements
from touchstone.reference.attention_decode import torch_attention_decode
from touchstone.reference.attention_decode_int4 import torch_attention_decode_int4

ROUNDED_TWICE = (
    "the product code·factor is rounded to the dtype before the shift is added, and the sum once more, as by separate "
    "operations in that dtype"
)


def _size(batch, heads_q, heads_kv, seq_q, seq_k, dim, groups):
    return dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, Sk=seq_k, D=dim, C=dim // 2, G=groups, P=2)


SIZES = [
    _size(*size)
    for size in [
        (3, 4, 2, 1, 24, 16, 2),
        (1, 1, 1, 1, 1, 64, 1),
        (2, 2, 1, 1, 0, 16, 1),
        (2, 8, 1, 2, 96, 40, 5),
        (5, 3, 3, 3, 5, 18, 6),
        (2, 6, 2, 7, 12, 136, 4),
        (9, 20, 4, 1, 3, 8, 1),
        (1, 4, 2, 1, 3072, 8, 2),
    ]
]
REGULAR = Regular(
    [
        _size(*size)
        for size in [
            (2, 4, 4, 1, 64, 64, 1),
            (1, 4, 1, 1, 128, 128, 4),
            (4, 2, 1, 1, 64, 128, 1),
            (2, 8, 2, 1, 64, 64, 2),
            (2, 2, 2, 1, 192, 64, 1),
            (1, 8, 1, 1, 64, 128, 4),
            (1, 4, 4, 1, 192, 64, 2),
            (4, 1, 1, 1, 64, 64, 1),
        ]
    ]
)
OVER_TILES = _size(1, 4, 2, 1, 602, 8, 2)
BEYOND_GRID = [_size(3, 23001, 1, 1, 3, 4, 1)]
LARGE = [
    _size(*size)
    for size in [
        (32, 8, 1, 1, 8192, 128, 4),
        (64, 32, 8, 1, 4096, 128, 4),
        (1, 32, 8, 1, 131072, 128, 4),
        (32, 8, 1, 1, 8192, 128, 1),
    ]
]
CODES = ("contiguous", "heads_inside", "step", "offset")
SCALES = ("contiguous", "transposed", "sliced", "offset")
CACHES = ("k_codes", "k_scales", "v_codes", "v_scales")


def expect(inputs, params, *, dtype, compute=None):
    """Attention's answer and bound over the numbers that the codes stand for, and what it costs to make these: float32
    products and sums, or an element rounded once to the dtype. Another answer is that of code which rounds code·factor
    too, as by operations in the dtype."""
    q, lengths = inputs["q"], inputs["lengths"]
    k, v, k_sizes, v_sizes = (
        torch_elements(inputs[f"{name}_codes"], change(inputs[f"{name}_scales"]))
        for change in (torch.Tensor.double, torch.Tensor.abs)
        for name in "kv"
    )
    o, lse = torch_attention_decode_int4(**inputs, **params)
    scale = softmax_scale(params["scale"], q.shape[-1])

    def bound(b, length):
        found = over_own_keys(q, k, v, b, length, scale, dtype=dtype, compute=compute)
        if not length:
            return found
        own = [t[b : b + 1, :, :length] for t in (k, v, k_sizes, v_sizes)]
        of_o, of_lse = found["o"], found["lse"]
        at = probabilities(q[b : b + 1], own[0], of_lse.answer, causal=True, scale=scale, compute=lossy(compute, dtype))
        rows, stacked = stack(q[b : b + 1], k.shape[1]), stack(of_o.answer, k.shape[1])
        made = at.p * abs(scale) * (rows.abs() @ own[2].mT)
        condition = made @ own[1].abs() + at.p @ own[3] + stacked.abs() * made.sum(-1, keepdim=True)
        of_o.parts = [(terms, part + condition.reshape(of_o.answer.shape)) for terms, part in of_o.parts]
        of_lse.parts = [(terms, part + made.sum(-1).reshape(of_lse.answer.shape)) for terms, part in of_lse.parts]
        stored = at.p * abs(scale) * combine(rows.abs(), own[0].mT)  # elements of k, each rounded
        through = combine(stored, own[1]) + stacked.abs() * gathered(stored, -1).unsqueeze(-1)
        of_o.rounding = of_o.rounding + (through + combine(at.p, own[1])).reshape(q[b : b + 1].shape)
        of_lse.rounding = of_lse.rounding + gathered(stored, -1).reshape(of_lse.answer.shape)
        return found

    whole = by_sequence(o, lse, lengths, bound)
    if dtype is not torch.float32:
        k, v = (_rounded_twice(inputs[f"{name}_codes"], inputs[f"{name}_scales"], dtype) for name in "kv")
        for name, answer in zip(NAMES, torch_attention_decode(q, k, v, lengths, **params), strict=True):
            whole[name].alternatives.append(replace(whole[name], answer=answer, alternatives=[], note=ROUNDED_TWICE))
    return whole


def _rounded_twice(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Elements in float64 of which code·factor was rounded to `dtype`, and then the sum with the shift."""
    products = torch_elements(codes, torch.stack([scales[..., 0], torch.zeros_like(scales[..., 1])], -1))
    shifts = torch_elements(torch.zeros_like(codes), scales)
    return (products.to(dtype).double() + shifts).to(dtype).double()


def _family(make):
    def family(draw: Draw):
        drawn = {name: draw.integers(draw.shape(name), 0, 256) for name in ("k_codes", "v_codes")}
        drawn |= {"q": draw.normal(draw.shape("q")), "k_scales": _scales(draw), "v_scales": _scales(draw)}
        make(draw, drawn)
        drawn["k_scales"][:, :, 1:2, :, 0] = 0  # a group of equal elements, which are its shift
        lengths = lengths_of(draw.size["B"], draw.size["Sk"])
        for b, length in enumerate(lengths):
            drawn["v_scales"][b, :, max(0, length - 1) : length, :, 1] += 3  # the last key counts
        return drawn | {"lengths": torch.tensor(lengths, dtype=torch.float64)}

    return family


def _scales(draw: Draw) -> torch.Tensor:
    """Another factor and shift for each group of each row, so that elements are about as large as normal ones."""
    factor = draw.uniform(draw.shape("k_scales")[:-1], 0.1, 0.3)
    return torch.stack([factor, factor * draw.uniform(factor.shape, -10, -5)], -1)


def _growing_keys(draw: Draw, drawn) -> None:
    """Scores rise along the keys, and so do the keys' norms: the running maximum changes in every tile, and where there
    are many keys, exp overflows under one that stays behind."""
    seq, dim = draw.size["Sk"], draw.size["D"]
    rise = (100 if seq > 64 else 12) / (0.7 * dim * softmax_scale(draw.param["scale"], dim))
    ramp = torch.linspace(rise / 16, rise, seq, dtype=torch.float64)[:, None, None]
    drawn["q"] = drawn["q"] * 0.5 + 0.7
    drawn["k_scales"] = drawn["k_scales"] * 0.3 * ramp.abs()
    drawn["k_scales"][..., 1:] += ramp


def _low_weights(draw: Draw, drawn) -> None:
    """Scores as values.low_weights has them: keys are their shifts."""
    dim = draw.size["D"]
    low = values.low_weights(draw, drawn["k_scales"].shape[:-1], along=2)
    drawn["q"] = torch.full_like(drawn["q"], 2 / dim)
    drawn["k_scales"][..., 0], drawn["k_scales"][..., 1] = 0, low / 2 / softmax_scale(draw.param["scale"], dim)


def _large(draw: Draw, drawn) -> None:
    """Scores of some hundreds: exp without the maximum subtracted overflows."""
    drawn["q"] = drawn["q"] * 8
    drawn["k_scales"] = drawn["k_scales"] * 8


def _shifted_negative(draw: Draw, drawn) -> None:
    """All scores far from zero, below it where the scale is positive: padding with a score of 0 wins."""
    drawn["q"] = drawn["q"].abs() + 1
    drawn["k_scales"][..., 1] = -15 * drawn["k_scales"][..., 0] - 6


def _beyond_float16(draw: Draw, drawn) -> None:
    """Factors and shifts that bfloat16 holds and float16 does not: large ones of the values, small ones of the keys."""
    drawn["q"] = drawn["q"] * 2.0**20
    drawn["k_scales"] = drawn["k_scales"] * 2.0**-20
    drawn["v_scales"] = drawn["v_scales"] * 2.0**20


def _cancelling(draw: Draw, drawn) -> None:
    """Values above zero over the first half of the keys and below over the second, with nearly equal scores."""
    drawn["q"] = drawn["q"] * 0.25
    drawn["k_scales"] = drawn["k_scales"] * 0.25
    scales = drawn["v_scales"]
    scales[..., 1] = 1
    scales[..., 0] *= 0.25
    scales[:, :, scales.shape[2] // 2 :] *= -1


def _valid(case) -> bool:
    size = case.size
    if 0 in size.values():
        return case.values == "normal"
    if case.values == "growing_keys" and case.param["scale"] == 0:
        return False
    if case.param["scale"] == 0 and case.layout["k_codes"] != "contiguous":
        return False  # where keys do not count, their strides do not show
    return size["Sk"] > 1 or case.values in ("normal", "large")


def _pairs(size) -> float:
    """Queries times the keys of their sequences."""
    return size["Hq"] * size["Sq"] * keys_of(size)


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["Hkv"] * keys_of(size)
    return 2 * queries * size["D"] * item + keys * (size["D"] + 4 * size["G"] * item) + 4 * (queries + size["B"])


def _doubled_values(call, arguments, outputs, case):
    o, lse = call(**{**arguments, "v_scales": 2 * arguments["v_scales"]})
    normal = outputs[0].abs() >= torch.finfo(o.dtype).tiny
    same = torch.equal(o[normal], 2 * outputs[0][normal]) and torch.equal(lse, outputs[1])
    return None if same else "doubling factors and shifts of the values must double o to the bit and leave lse"


ALSO = {
    "one_query_of_groups": Also(_size(3, 24, 2, 1, 33, 96, 2), dtype="float16"),
    "wide_heads": Also(_size(3, 4, 2, 3, 40, 160, 5), dtype="bfloat16"),
    **{f"width_{width}": Also(_size(3, 2, 1, 2, 40, width, 2), dtype=dtype) for width, dtype in WIDTHS.items()},
    "many_keys": Also(_size(1, 2, 1, 1, 6241, 16, 1)),  # 4161 of them
    "low_weights": Also(_size(1, 2, 1, 1, 6241, 16, 1), _family(_low_weights)),
    # 513 of them: than whole tiles, than whole parts
    "one_key_more": Also(_size(1, 2, 1, 1, 769, 16, 1), "growing_keys"),
    "keys_beyond_16_bits": Also(_size(1, 1, 1, 1, BEYOND_16_BITS, 8, 1)),
    # the last key, in a tile of its own, is seen by one query of three
    "queries_before_a_tile": Also(_size(1, 2, 1, 3, 769, 16, 1)),
    "full_in_several_tiles": Also(_size(3, 2, 1, 1, 643, 16, 1)),  # one of the caches, of no whole tiles or equal parts
    "tail_of_a_tile": Also(_size(3, 4, 2, 1, 150, 32, 2)),  # 100, none and 150 keys
    "beyond_float16": Also(_size(3, 4, 2, 1, 24, 16, 2), _family(_beyond_float16), dtype="bfloat16"),
}
contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k_codes": Operand("B Hkv Sk C", CODES, torch.uint8, garbage=beyond("k_codes"), unused="rows from lengths on"),
        "k_scales": Operand("B Hkv Sk G P", SCALES, garbage=beyond("k_scales"), unused="rows from lengths on"),
        "v_codes": Operand("B Hkv Sk C", CODES, torch.uint8, garbage=beyond("v_codes"), unused="rows from lengths on"),
        "v_scales": Operand("B Hkv Sk G P", SCALES, garbage=beyond("v_scales"), unused="rows from lengths on"),
        "lengths": Operand("B", ("contiguous", "step", "offset"), torch.int32, fixed=True),
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=OVER_TILES,
    values={
        "normal": _family(lambda draw, drawn: None),
        "growing_keys": _family(_growing_keys),
        "large": _family(_large),
        "shifted_negative": _family(_shifted_negative),
        "cancelling": _family(_cancelling),
    },
    params={"scale": (None, 0.21, -0.3, 0.0)},
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=LARGE,
    flops=lambda size, param: 4 * _pairs(size) * size["D"] + 4 * size["Hkv"] * keys_of(size) * size["D"] + 1,
    calls=lambda size, param: _pairs(size),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("q has an odd D", spoil("q", lambda q: q[..., 1:]), ValueError, r"\bq\b"),
        Invalid("k_codes are int32", spoil("k_codes", torch.Tensor.int), TypeError, r"\bk_codes\b.*int32"),
        Invalid("v_codes have another length", spoil("v_codes", lambda t: t[:, :, 1:]), ValueError, r"\bv_codes\b"),
        Invalid("k_scales have no shift", spoil("k_scales", lambda t: t[..., :1]), ValueError, r"\bk_scales\b"),
        Invalid("v_scales have another dtype", spoil("v_scales", torch.Tensor.half), TypeError, r"\bv_scales\b"),
        Invalid("v_scales have other groups", spoil("v_scales", lambda t: t[..., 1:, :]), ValueError, r"\bv_scales\b"),
        Invalid(
            "groups of different sizes",
            lambda a: {**a, **{n: torch.cat([a[n], a[n][..., :1, :]], 3) for n in ("k_scales", "v_scales")}},
            ValueError,
            r"\bk_scales\b.*\bgroups\b",
        ),
        Invalid("heads of q no multiple", spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("q is float64", spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("lengths are int64", spoil("lengths", torch.Tensor.long), TypeError, r"\blengths\b.*int64"),
        Invalid("lengths is None", spoil("lengths", lambda t: None), TypeError, r"\blengths\b"),
        Invalid("k_codes are elsewhere", spoil("k_codes", lambda k: k.to("meta")), ValueError, r"\bk_codes\b.*meta"),
    ],
    properties=[
        Property("order of keys does not matter", order_of_keys(*CACHES)),
        Property("linear in v", _doubled_values),
        Property("sequences are independent", sequences_are_independent),
        nothing_is_left_of_caches(*CACHES),
    ],
)


def _sdpa(q, k_codes, k_scales, v_codes, v_scales, lengths, scale, **_):
    k, v = torch_elements(k_codes, k_scales), torch_elements(v_codes, v_scales)
    queries = q.shape[2]
    last = torch.arange(queries, device=q.device)[:, None] + lengths[:, None, None, None] - queries
    seen = torch.arange(k.shape[2], device=q.device) <= last
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return {"o": o}


bench = Bench(
    baselines=[eager("dequantised, F.scaled_dot_product_attention", _sdpa)], independent_axes=(("B",), ("Hq", "Hkv"))
)
