"""attention_backward(q, k, v, o, lse, do, *, causal, scale): dq, dk, dv, with o and lse as attention returns them."""

import math

import torch
from torch.nn.attention import SDPBackend

from touchstone.conformance.contracts import attention
from touchstone.conformance.contracts._attention import gradient_bounds, probabilities
from touchstone.conformance.contracts._bounds_dots import lossy
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import finite
from touchstone.conformance.spec.contract import (
    Also,
    Contract,
    Draw,
    Int64Index,
    Invalid,
    Operand,
    Output,
    Property,
    beyond_largest,
    with_params,
)
from touchstone.reference.attention import torch_attention
from touchstone.reference.attention_backward import torch_attention_backward

MATCHED = tuple(name for name in layouts.HEADS if name not in layouts.BROADCASTS)  # o and lse belong to their row


def _derive(exact, params):
    """o and lse of the rounded q, k, v."""
    causal, scale = params["causal"], attention.softmax_scale(params["scale"], exact["q"].shape[-1])
    o, lse = torch_attention(exact["q"], exact["k"], exact["v"], causal=causal, scale=scale)
    return {"o": o, "lse": lse}


def expect(inputs, params, *, dtype, compute=None):
    q, k, v, o, lse, do = (inputs[name] for name in ("q", "k", "v", "o", "lse", "do"))
    causal, scale = params["causal"], attention.softmax_scale(params["scale"], q.shape[-1])
    compute = lossy(compute, dtype)
    gradients = torch_attention_backward(q, k, v, o, lse, do, causal=causal, scale=scale)
    at = probabilities(q, k, lse, causal=causal, scale=scale, compute=compute)
    about = dict(factor=abs(scale), dtype=dtype, compute=compute)
    found = gradient_bounds(finite(q), finite(k), v, o, lse, do, gradients, at, **about)
    if bool(q.isinf().any() or k.isinf().any()):
        for bound in found.values():
            bound.excused = bound.answer.isnan()  # 0 times infinity: a kernel may leave out what has no weight
    return found


def _family(make):
    def family(draw: Draw):
        q, k, v = make(draw)
        do = values.normal(draw, draw.shape("do"))
        do[..., -1:, :] += 2
        return {"q": q, "k": k, "v": v, "do": do}

    return family


def _gradient_scales(draw: Draw):
    """Rows of do of very different size: delta or lse of another row is far off."""
    do = draw.normal(draw.shape("do"))
    scale = torch.exp2(torch.arange(do.shape[2], dtype=torch.float64) % 9 - 4).unsqueeze(-1)
    return {**dict(zip("qkv", attention.heads(draw), strict=True)), "do": do * scale}


def _scores_of_neg_inf(draw: Draw):
    """Of the keys that all queries see the first are -inf in one column and have no weight; the last query is so in
    another and gives zeros. What a tile has past its last query or key is 0 and must not be multiplied with them."""
    q, k, v = attention.heads(draw)
    q[..., :2], k[..., :2] = q[..., :2].abs() + 0.5, k[..., :2].abs() + 0.5
    k[..., : k.shape[2] // 3, 0] = -math.inf
    q[..., -1:, 1] = -math.inf
    return {"q": q, "k": k, "v": v, "do": values.normal(draw, draw.shape("do"))}


def _beyond_float16(draw: Draw):
    """dp, ds and all gradients beyond what float16 holds; bfloat16 holds them."""
    return {**_family(attention.heads)(draw), "do": draw.normal(draw.shape("do"), 2.0**24)}


def _value_offset(draw: Draw):
    """Values far from 0: dp and delta are large, their difference is not."""
    q, k, v = attention.heads(draw)
    do = draw.uniform(draw.shape("do"), 0.5, 1.5)
    return {"q": q, "k": k, "v": v + 20, "do": do}


def _cancelling_queries(draw: Draw):
    """The second half of the queries is the first once more, with about minus its do, and all terms of one sum have one
    sign.

    Partial sums over the queries grow like their number, in dk too: a lost tile or an accumulator of less than float32.
    """
    q, k = draw.uniform(draw.shape("q"), 0.5, 1.5), draw.normal(draw.shape("k"), 0.25)
    do, v = draw.uniform(draw.shape("do"), 0.5, 1.5), draw.uniform(draw.shape("v"), 0.5, 1.5)
    v[..., : v.shape[2] // 2, :] *= -1
    half = q.shape[2] // 2
    last = slice(q.shape[2] - half, None)
    q[..., last, :] = q[..., :half, :]
    do[..., last, :] = -do[..., :half, :] * (1 + 2**-6 * draw.uniform(do[..., :half, :].shape))
    return {"q": q, "k": k, "v": v, "do": do}


def _small_addends_of_keys(draw: Draw):
    """Scores of 0 and terms of dq of which the first is large and each other one less than half a unit of it in 16
    bits, together 1/128 of it."""
    q, k, v, do = (torch.zeros(draw.shape(name), dtype=torch.float64) for name in ("q", "k", "v", "do"))
    half = q.shape[3] // 2
    q[..., half:], do[...] = 1.0, 64.0
    k[..., :half], k[..., :1, :half] = -1 / 128, 1.0
    v[..., :1, :] = 1.0
    return {"q": q, "k": k, "v": v, "do": do}


def _small_addends_of_queries(draw: Draw):
    """The same of dk and dv, whose terms come from the queries of all heads of a group."""
    q, k, v, do = (torch.zeros(draw.shape(name), dtype=torch.float64) for name in ("q", "k", "v", "do"))
    half, group = q.shape[3] // 2, q.shape[1] // max(1, k.shape[1])
    q[..., half:], k[..., :half], v[...] = 1.0, 1.0, 1.0
    v[..., 1::2, :] = -1.0
    do[...] = values.small_addend(group * q.shape[2])
    do[:, ::group, :1] = values.LARGE_ADDEND
    return {"q": q, "k": k, "v": v, "do": do}


def _beyond_largest(draw: Draw):
    """Of the first head dq, of large keys, of the second dk, of large queries, of the third dv, of a large do. In
    bfloat16 dv alone, whose terms have one sign: those of the others would be beyond float32 too."""
    q, k, v = (draw.normal(draw.shape(name)) for name in "qkv")
    do = draw.normal(draw.shape("do"), 2.0**8)
    if draw.dtype is torch.float16:
        k[:, 0], q[:, 0] = k[:, 0] * 2.0**11, q[:, 0] / 2.0**11
        q[:, 1], k[:, 1] = q[:, 1] * 2.0**11, k[:, 1] / 2.0**11
    v[:, 2], do[:, 2] = v[:, 2] / 2.0**12, draw.of_largest("do", 0.5, 1.0)[:, 2]
    return {"q": q, "k": k, "v": v, "do": do}


def _valid(case) -> bool:
    if case.values in ("growing_keys", "cancelling_queries") and case.param["scale"] == 0:
        return False
    if case.values == "cancelling_queries" and (case.size["Sq"] < 100 or case.param["causal"]):
        return False
    if case.values == "far_below":
        broadcast = any(layout in layouts.BROADCASTS for _, layout in case.layouts)
        return not broadcast and (case.param["scale"] is None or case.param["scale"] > 0) and case.filled
    return case.values == "normal" or 0 not in case.size.values()


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["B"] * size["Hkv"] * size["Sk"]
    return 4 * (queries + keys) * size["D"] * item + 4 * queries


def _zero_gradient(call, arguments, outputs, case):
    dq, dk, dv = call(**{**arguments, "do": torch.zeros_like(arguments["do"])})
    left = [name for name, t in (("dq", dq), ("dk", dk), ("dv", dv)) if t.count_nonzero()]
    return f"do = 0 leaves {', '.join(left)} unlike 0" if left else None


def _queries_are_independent(call, arguments, outputs, case):
    do = torch.zeros_like(arguments["do"])
    do[:, :, -1] = arguments["do"][:, :, -1]
    dq, _, dv = call(**{**arguments, "do": do, "causal": True})
    if dq[:, :, :-1].count_nonzero():
        return "a query whose do is 0 has a dq"
    do = arguments["do"].clone()
    do[:, :, -1] = 0
    dk, dv = call(**{**arguments, "do": do, "causal": True})[1:]
    return "a key that only the last query sees, whose do is 0, has a gradient" if _last(dk) or _last(dv) else None


def _last(gradient: torch.Tensor) -> bool:
    return bool(gradient[:, :, -1].count_nonzero())


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _too_wide(arguments):
    return {n: t.new_zeros((*t.shape[:3], 257)) if getattr(t, "ndim", 0) == 4 else t for n, t in arguments.items()}


def _fewer_heads(arguments):
    return {n: t[:, :3] if n in ("q", "o", "do", "lse") else t for n, t in arguments.items()}


SMALL_ADDENDS = {
    "small_addends_of_keys": Also(dict(B=1, Hq=1, Hkv=1, Sq=1, Sk=4161, D=16), _small_addends_of_keys, dtype="float16"),
    "small_addends_of_queries": Also(
        dict(B=1, Hq=1, Hkv=1, Sq=4161, Sk=2, D=16), _small_addends_of_queries, dtype="float16"
    ),
    "small_addends_of_heads": Also(
        dict(B=1, Hq=64, Hkv=1, Sq=2, Sk=2, D=16), _small_addends_of_queries, dtype="float16"
    ),
}
# queries and keys beyond whole tiles; in a dtype of tensor cores, and in float32
NEG_INF = {
    "special_scores": Also(
        dict(B=2, Hq=4, Hkv=2, Sq=9, Sk=41, D=16), _scores_of_neg_inf, {"causal": True}, dtype="float16"
    ),
    "special_scores_float32": Also(dict(B=1, Hq=2, Hkv=1, Sq=17, Sk=33, D=24), _scores_of_neg_inf),
}
BEYOND_LARGEST = beyond_largest(dict(B=1, Hq=3, Hkv=3, Sq=40, Sk=8, D=16), _beyond_largest)
contract = Contract(
    gradient_of="attention",
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", layouts.HEADS),
        "v": Operand("B Hkv Sk D", layouts.HEADS),
        "o": Operand("B Hq Sq D", MATCHED, derived=True),
        "lse": Operand("B Hq Sq", ("contiguous", "transposed", "step", "offset"), torch.float32, derived=True),
        "do": Operand("B Hq Sq D", layouts.HEADS),
    },
    outputs={"dq": Output("B Hq Sq D"), "dk": Output("B Hkv Sk D"), "dv": Output("B Hkv Sk D")},
    sizes=attention.SIZES,
    regular=attention.REGULAR,
    values={
        "normal": _family(attention.heads),
        "growing_keys": _family(attention.growing_keys),
        "large": _family(attention.large),
        "shifted_negative": _family(attention.shifted_negative),
        "cancelling": _family(attention.cancelling),
        "cancelling_queries": _cancelling_queries,
        "gradient_scales": _gradient_scales,
        "value_offset": _value_offset,
        "far_below": _family(lambda draw: attention.far_below(draw, farthest=False)),
    },
    params=attention.PARAMS,
    derive=_derive,
    valid=_valid,
    expect=expect,
    over_tiles=attention.OVER_TILES,
    beyond_grid=attention.BEYOND_GRID,
    also=attention.ALSO
    | SMALL_ADDENDS
    | NEG_INF
    | BEYOND_LARGEST
    | {
        "low_scores": Also(attention.LOW_SCORES, "far_below"),
        "no_queries": Also(dict(B=1, Hq=2, Hkv=1, Sq=0, Sk=5, D=16), params={"causal": True}),
        "beyond_float16": Also(dict(B=1, Hq=2, Hkv=1, Sq=24, Sk=24, D=16), _beyond_float16, dtype="bfloat16"),
    },
    int64_index=Int64Index(attention.BEYOND_INT32, rows=dict.fromkeys(("q", "k", "v", "o", "lse", "do"), 0)),
    large=[*attention.LARGE, dict(B=4, Hq=16, Hkv=16, Sq=4096, Sk=4096, D=256)],
    flops=lambda size, param: 2.5 * attention.flops(size, param),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[:, :, 1:]), ValueError, r"\bv\b"),
        Invalid("o has another length", _spoil("o", lambda o: o[:, :, 1:]), ValueError, r"\bo\b"),
        Invalid("lse has another length", _spoil("lse", lambda lse: lse[:, :, 1:]), ValueError, r"\blse\b"),
        Invalid("lse has an axis too many", _spoil("lse", lambda lse: lse[..., None]), ValueError, r"\blse\b"),
        Invalid("do has another D", _spoil("do", lambda do: do[..., 1:]), ValueError, r"\bdo\b"),
        Invalid("heads of q no multiple", _fewer_heads, ValueError, r"\bq\b.*\bheads\b"),
        Invalid("D above 256", _too_wide, ValueError, r"\bq\b.*257"),
        Invalid("do has another dtype", _spoil("do", torch.Tensor.half), TypeError, r"\bdo\b"),
        Invalid("lse is float16", _spoil("lse", torch.Tensor.half), TypeError, r"\blse\b.*float16"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v is int32", _spoil("v", torch.Tensor.int), TypeError, r"\bv\b.*int32"),
        Invalid("do is elsewhere", _spoil("do", lambda do: do.to("meta")), ValueError, r"\bdo\b.*meta"),
        Invalid("o is no tensor", _spoil("o", torch.Tensor.tolist), TypeError, r"\bo\b.*list"),
        Invalid("lse is None", lambda arguments: {**arguments, "lse": None}, TypeError, r"\blse\b.*None"),
    ],
    properties=[
        Property("no gradient in, none out", _zero_gradient),
        Property("queries are independent", _queries_are_independent, elsewhere=with_params(causal=True)),
    ],
)

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}
bench = Bench(
    baselines=[
        *(
            autograd(
                name,
                attention.with_kernel(kernel),
                GRADIENTS,
                "do",
                devices=("cuda",),
                dtypes=None if "efficient" in name else attention.NARROW,
            )
            for name, kernel in attention.KERNELS.items()
        ),
        autograd("SDPA unfused", attention.with_kernel(SDPBackend.MATH), GRADIENTS, "do"),
        autograd(
            "flex_attention",
            lambda q, k, v, **about: attention.flex(q=q, k=k, v=v, **about)(q, k, v),
            GRADIENTS,
            "do",
            devices=("cuda",),
            slow=True,
        ),
    ],
    dtypes=("float16",),
    params={"causal": (False, True)},
    independent_axes=(("B",), ("Hq", "Hkv")),
)
