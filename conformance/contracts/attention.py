"""attention(q, k, v, *, causal, scale): o = softmax(scale·q·kᵀ)·v and lse, the query heads in groups that share k and
v."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from touchstone.conformance.contracts._attention import forward_bounds, probabilities, visible_pairs
from touchstone.conformance.contracts._bounds_dots import lossy
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Arguments, Baseline, Bench, Call
from touchstone.conformance.spec.contract import (
    Also,
    Contract,
    Draw,
    Int64Index,
    Invalid,
    Operand,
    Output,
    Property,
    Regular,
    with_params,
)
from touchstone.reference.attention import torch_attention

LONG = 8192  # keys, beyond which kernels were seen to leave the last ones out
SIZES = [
    dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, Sk=seq_k, D=dim)
    for batch, heads_q, heads_kv, seq_q, seq_k, dim in [
        (2, 6, 2, 9, 13, 40),  # three query heads to each of two key heads: no number stands for another
        (1, 1, 1, 1, 1, 64),
        (1, 2, 1, 0, 5, 16),
        (1, 2, 2, 3, 0, 16),
        (2, 3, 1, 65, 33, 80),
        (2, 6, 2, 17, 65, 128),
        (1, 6, 3, 33, 33, 40),
        (2, 2, 2, 5, 40, 192),
        (1, 4, 2, 7, 1025, 40),
        (2, 1, 1, 1031, 5, 24),
        (2, 1, 1, 1, 8209, 17),
        (2, 1, 1, 31, 256, 256),
        (2, 2, 1, 130, 200, 64),
        (2, 2, 1, 200, 130, 20),
        (2, 2, 1, 3, 129, 32),
        (2, 34, 2, 3, 21, 32),  # more query heads to a key head than a tile of 16 holds
        (2, 1, 1, 300, 280, 16),  # under a causal mask most queries see none of the keys from 256 on
    ]
]
BEYOND_GRID = [dict(B=8200, Hq=8, Hkv=1, Sq=1, Sk=3, D=8), dict(B=1, Hq=1, Hkv=1, Sq=65601, Sk=3, D=8)]
OVER_TILES = dict(B=1, Hq=2, Hkv=1, Sq=130, Sk=150, D=8)
BEYOND_INT32 = dict(B=2**14 + 1, Hq=4, Hkv=2, Sq=256, Sk=8, D=128)
LARGE = [
    dict(B=batch, Hq=heads, Hkv=heads, Sq=seq, Sk=seq, D=dim)
    for batch, heads, seq, dim in [(4, 16, 4096, 128), (2, 16, 8192, 128), (1, 16, 16384, 128), (2, 32, 8192, 64)]
]
REGULAR = Regular(
    sizes=[
        dict(B=batch, Hq=heads, Hkv=heads, Sq=seq, Sk=seq, D=dim)
        for batch, heads, seq, dim in [(1, 2, 64, 64), (1, 1, 128, 128), (2, 1, 128, 64), (1, 1, 64, 128)]
    ],
    params={"causal": (False, True)},
)
# widths that models have, apart from those of other cases: kernels round them up to multiples of 16, 32 or 64, or to a
# power of two
WIDTHS = {72: "float16", 112: "bfloat16", 192: "float16", 256: "bfloat16"}


def of_widths(size: Mapping[str, Any], widths: Mapping[int, str] = WIDTHS, **params: Any) -> dict[str, Also]:
    """A single case of each width, in that dtype, at a size otherwise the same."""
    return {f"width_{width}": Also({**size, "D": width}, params=params, dtype=dtype) for width, dtype in widths.items()}


# one query of many grouped heads over several key heads and batches
ALSO = {
    "one_query_of_groups": Also(dict(B=2, Hq=24, Hkv=2, Sq=1, Sk=33, D=96), params={"causal": True}, dtype="float16"),
    # whole tiles of queries and not of keys: a kernel may ask for a tail of the one by the other's length
    "wide_heads": Also(dict(B=2, Hq=4, Hkv=2, Sq=64, Sk=40, D=160), dtype="bfloat16"),
    # of one number of queries more keys before fewer: a mask kept by the number of queries alone is the wrong one then
    "few_queries_of_many_keys": Also(dict(B=2, Hq=2, Hkv=1, Sq=3, Sk=521, D=8), params={"causal": True}),
    **of_widths(dict(B=2, Hq=2, Hkv=1, Sq=3, Sk=40), causal=True),
    "one_query_strided": Also(
        dict(B=2, Hq=4, Hkv=2, Sq=1, Sk=33, D=16), layouts={"k": "heads_inside", "v": "heads_inside"}
    ),
    "odd_tiles": Also(dict(B=1, Hq=1, Hkv=1, Sq=64, Sk=320, D=64), dtype="float16"),  # 5 of 64 keys
    # three: masks may be left out where a length is a multiple of the other operand's tile
    **{
        f"three_tiles_{n}": Also(dict(B=1, Hq=2, Hkv=1, Sq=3 * n, Sk=3 * n, D=16), dtype=dtype)
        for n, dtype in [(16, "float32"), (32, "float16"), (64, "float32"), (128, "float16")]
    },
    # of float32, which may be cut to TF32 there alone
    "whole_tiles": Also(dict(B=1, Hq=1, Hkv=1, Sq=512, Sk=512, D=16), params={"causal": True}),
    # below 0 the scale makes a maximum of the products a minimum of the scores
    "keys_of_whole_tiles": Also(dict(B=1, Hq=2, Hkv=1, Sq=2, Sk=512, D=8), "growing_keys", {"scale": -0.3}),
    # as many heads as queries: with heads inside or not, the strides are the same numbers
    **{
        f"heads_as_queries{of}": Also(
            dict(B=2, Hq=8, Hkv=8, Sq=8, Sk=8, D=8),
            layouts=dict.fromkeys("qkv" if of else "", "heads_inside"),
            dtype=dtype,
        )
        for of, dtype in (("", "float32"), ("_inside", "float16"))
    },
    "queries_that_see_nothing": Also(dict(B=2, Hq=2, Hkv=1, Sq=40, Sk=24, D=16), params={"causal": True}),
}
MANY_KEYS = dict(B=1, Hq=2, Hkv=1, Sq=1, Sk=4161, D=16)
LOW_SCORES = dict(B=2, Hq=4, Hkv=2, Sq=64, Sk=40, D=16)
PARAMS = {"causal": (False, True), "scale": (None, 0.21, -0.3, 0.0)}


def softmax_scale(scale: float | None, dim: int) -> float:
    return 1 / math.sqrt(dim) if scale is None else scale


def expect(inputs, params, *, dtype, compute=None):
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    causal, scale = params["causal"], softmax_scale(params["scale"], q.shape[-1])
    compute = lossy(compute, dtype)
    o, lse = torch_attention(q, k, v, causal=causal, scale=scale)
    at = probabilities(q, k, lse, causal=causal, scale=scale, compute=compute)
    return forward_bounds(v, o, lse, at, dtype=dtype, compute=compute)


def heads(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal q, k, v, the last key's value above the others."""
    q, k, v = (values.normal(draw, draw.shape(name)) for name in ("q", "k", "v"))
    v[..., -1:, :] += 3
    return q, k, v


def growing_keys(draw: Draw):
    """Scores rise along the keys, and so do the keys' norms: the running maximum changes in every tile.

    Over more than one tile they rise so far that exp overflows under a maximum that stays behind.
    """
    q, k, v = heads(draw)
    seq, dim = k.shape[2:]
    rise = (100 if seq > 64 else 12) / (0.7 * dim * softmax_scale(draw.param["scale"], dim))
    ramp = torch.linspace(rise / 16, rise, seq, dtype=torch.float64).unsqueeze(-1)
    direction = draw.integers((dim,), 0, 2) * 2 - 1
    return q * 0.5 + direction * 0.7, k * 0.3 * ramp + direction * ramp, v


def large(draw: Draw):
    """Scores of some hundreds: exp without the maximum subtracted overflows."""
    q, k, v = heads(draw)
    return q * 8, k * 8, v


def shifted_negative(draw: Draw):
    """All scores far below zero: padding with a score of 0 wins."""
    q, k, v = heads(draw)
    return q.abs() + 1, -(k.abs() + 6), v


def cancelling(draw: Draw):
    """Values above zero over the first half of the keys and below over the second, with nearly equal scores."""
    q, k, v = heads(draw)
    half = v.shape[2] // 2
    v = v.abs() * 0.25 + 1
    v[..., v.shape[2] - half :, :] *= -1
    return q * 0.25, k * 0.25, v


def far_below(draw: Draw, farthest: bool = True):
    """All scores below -5e4, and but for float16, if `farthest`, in every second key head below -1e30: a finite number
    in place of -inf, where a running maximum starts or for hidden keys and padding, is larger.

    The first key has all the weight. Scores are powers of two but for the scale, so that a product with log2 e that is
    rounded once more than another does not matter.
    """
    q, k, v = torch.zeros(draw.shape("q")), torch.zeros(draw.shape("k")), draw.normal(draw.shape("v"))
    scale = softmax_scale(draw.param["scale"], q.shape[-1])
    deep = torch.arange(k.shape[0] * k.shape[1]).reshape(k.shape[:2]) % 2 == 1
    if draw.dtype is torch.float16 or not farthest:
        deep[:] = False
    below = torch.where(deep, 2e30, 5.5e4) / scale
    whole = torch.exp2(below.double().log2().ceil())
    of_q = torch.where(deep, 2.0**54, 2.0**8)
    q[..., 0] = of_q.repeat_interleave(q.shape[1] // k.shape[1], 1)[..., None]
    k[..., 0] = -2 * (whole / of_q)[..., None]
    k[:, :, :1] /= 2
    return q.double(), k.double(), v


def nan_and_neg_inf(draw: Draw):
    """In the last key head of all the scores of keys that every query sees are -inf, but one is NaN: a maximum that
    skips NaN finds nothing."""
    q, k, v = heads(draw)
    seen_by_all = k.shape[2] - q.shape[2] + 1 if draw.param["causal"] else k.shape[2]
    q[..., 0] = q[..., 0].abs() + 0.5
    k[-1, -1, :seen_by_all, 0] = -math.inf
    k[-1, -1, int(draw.integers((1,), 0, seen_by_all)), 0] = math.nan
    return q, k, v


def small_addends(draw: Draw):
    """Values of which the first is large and the others are small: of many keys each tile adds less than half a unit of
    what is there in 16 bits, and all of them together 1/128 of it. Scores are about equal."""
    q, k, v = heads(draw)
    k[..., :1, :] = 0
    signs = draw.integers(v[..., :1, :].shape, 0, 2) * 2 - 1
    v[...] = values.small_addend(v.shape[2]) * signs
    v[..., :1, :] = values.LARGE_ADDEND * signs
    return q * 0.25, k * 0.25, v


def low_weights(draw: Draw):
    """Scores as values.low_weights has them."""
    q, k, v = heads(draw)
    q[...], k[...] = 0, 0
    q[..., 0] = 2
    k[..., 0] = values.low_weights(draw, k.shape[:-1]) / 2 / softmax_scale(draw.param["scale"], q.shape[-1])
    return q, k, v


def _family(make):
    return lambda draw: dict(zip("qkv", make(draw), strict=True))


def _uniform(draw: Draw):
    """q = 0 and values {0, 1}: no probability is rounded, so that an error in the denominator shows at last."""
    return torch.zeros(draw.shape("q")), draw.normal(draw.shape("k")), draw.integers(draw.shape("v"), 0, 2)


def _special(draw: Draw):
    """-inf for the leading third of the keys, for scattered ones, and for all keys of the last query; NaN in the first.

    Keys are never hidden ones: an infinity in k where the causal mask hides it is outside the contract.
    """
    q, k, v = heads(draw)
    seq_q, seq_k, dim = q.shape[2], k.shape[2], q.shape[3]
    seen_by_all = seq_k - seq_q + 1 if draw.param["causal"] else seq_k
    gone = torch.arange(seq_k) < seq_k // 3
    gone |= draw.uniform((seq_k,)) < 0.1
    gone &= torch.arange(seq_k) < seen_by_all
    q[..., :2] = q[..., :2].abs() + 0.5
    k[..., :2] = k[..., :2].abs() + 0.5
    k[..., gone, 0] = -math.inf
    if dim > 1 and seq_q > 2:
        q[..., -1, 1] = -math.inf
        q[0, -1, 0, int(draw.integers((1,), 0, dim))] = math.nan
    return q, k, v


def _valid(case) -> bool:
    size, causal = case.size, case.param["causal"]
    if 0 in size.values():
        return case.values == "normal"
    if case.values == "growing_keys" and case.param["scale"] == 0:
        return False
    if case.values == "uniform":  # every query sees the same power of two
        return size["Sk"] & (size["Sk"] - 1) == 0 and (not causal or size["Sq"] == 1)
    if size["Sk"] > LONG and case.values in ("far_below", "growing_keys", "large"):
        return False  # few keys have all the weight: whether the last ones are read would not show
    positive = case.param["scale"] is None or case.param["scale"] > 0
    if case.values == "far_below":
        return positive and not any(layout in layouts.BROADCASTS for _, layout in case.layouts)
    if case.values == "nan_and_neg_inf" and any(layout in layouts.BROADCASTS for _, layout in case.layouts):
        return False
    if case.values in ("special", "nan_and_neg_inf"):
        # torch's own kernel loses NaN on a CPU where there are few keys; under a mask only keys that every query sees
        # may be infinite
        # with a scale below 0, -inf in k turns into +inf
        return positive and size["Sk"] >= 32 and size["Sq"] < 512 and (not causal or size["Sq"] <= size["Sk"])
    return True


def flops(size, param) -> float:
    return 4 * size["B"] * size["Hq"] * visible_pairs(size["Sq"], size["Sk"], param["causal"]) * size["D"]


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["B"] * size["Hkv"] * size["Sk"]
    return 2 * (queries + keys) * size["D"] * item + 4 * queries


def _hidden_keys(call, arguments, outputs, case):
    causal = {**arguments, "causal": True}
    before = call(**causal)
    spoiled = {name: arguments[name].clone() for name in ("k", "v")}
    for tensor in spoiled.values():
        tensor[:, :, -1] = 2 * tensor[:, :, -1] + 1
    after = call(**{**causal, **spoiled})
    same = torch.equal(before[0][:, :, :-1], after[0][:, :, :-1]) and torch.equal(
        before[1][:, :, :-1], after[1][:, :, :-1]
    )
    return None if same else "changing the last key changed queries that do not see it"


def _key_order(call, arguments, outputs, case):
    order = torch.randperm(case.size["Sk"], generator=case.rng("order")).to(arguments["k"].device)
    o, lse = call(**{**arguments, "k": arguments["k"][:, :, order], "v": arguments["v"][:, :, order]})
    eps = torch.finfo(o.dtype).eps
    off = max((o - outputs[0]).abs().max().item() / eps, (lse - outputs[1]).abs().max().item() / 2**-18)
    limit = 8 * max(1.0, arguments["v"].abs().max().item())
    return None if off <= limit else f"another order of keys and values moves the answer by {off:.3g} eps"


def _doubled_values(call, arguments, outputs, case):
    o, lse = call(**{**arguments, "v": 2 * arguments["v"]})
    normal = outputs[0].abs() >= torch.finfo(o.dtype).tiny
    same = torch.equal(o[normal], 2 * outputs[0][normal]) and torch.equal(lse, outputs[1])
    return None if same else "doubling v must double o to the bit and leave lse"


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _too_wide(arguments):
    return {**arguments, **{n: t.new_zeros((*t.shape[:3], 257)) for n, t in arguments.items() if n in ("q", "k", "v")}}


def _sample(q: torch.Tensor, args, kwargs) -> dict | None:
    """The call's arguments from an OpInfo sample: no mask, no dropout, and causal where both alignments are one."""
    k, v = args[:2]
    causal = kwargs.get("is_causal", False)
    if (
        q.ndim != 4
        or kwargs.get("attn_mask") is not None
        or kwargs.get("dropout_p")
        or v.shape != k.shape
        or len(args) > 2
    ):
        return None
    if causal and q.shape[2] != k.shape[2]:
        return None
    return {"q": q, "k": k, "v": v, "causal": causal, "scale": kwargs.get("scale")}


contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", layouts.HEADS),
        "v": Operand("B Hkv Sk D", layouts.HEADS),
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    values={
        "normal": _family(heads),
        "growing_keys": _family(growing_keys),
        "large": _family(large),
        "shifted_negative": _family(shifted_negative),
        "cancelling": _family(cancelling),
        "uniform": _family(_uniform),
        "special": _family(_special),
        "far_below": _family(far_below),
        "nan_and_neg_inf": _family(nan_and_neg_inf),
    },
    params=PARAMS,
    valid=_valid,
    expect=expect,
    over_tiles=OVER_TILES,
    beyond_grid=BEYOND_GRID,
    also=ALSO
    | {
        "many_keys": Also(MANY_KEYS, _family(small_addends), dtype="float16"),
        "low_weights": Also(MANY_KEYS, _family(low_weights)),
        "low_scores": Also(LOW_SCORES, "far_below"),
    },
    int64_index=Int64Index(BEYOND_INT32, rows=dict.fromkeys("qkv", 0)),
    large=LARGE,
    flops=flops,
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[:, :, 1:]), ValueError, r"\bv\b"),
        Invalid("v has another batch", _spoil("v", lambda v: v[:1]), ValueError, r"\bv\b"),
        Invalid("heads of q no multiple", _spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("D above 256", _too_wide, ValueError, r"\bq\b.*257"),
        Invalid("k has another dtype", _spoil("k", torch.Tensor.half), TypeError, r"\bk\b"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v is int32", _spoil("v", torch.Tensor.int), TypeError, r"\bv\b.*int32"),
        Invalid("k is elsewhere", _spoil("k", lambda k: k.to("meta")), ValueError, r"\bk\b.*meta"),
        Invalid("q is no tensor", _spoil("q", torch.Tensor.tolist), TypeError, r"\bq\b.*list"),
        Invalid("v is None", lambda arguments: {**arguments, "v": None}, TypeError, r"\bv\b.*None"),
    ],
    opinfo=("nn.functional.scaled_dot_product_attention", _sample),
    properties=[
        Property("hidden keys do not matter", _hidden_keys, elsewhere=with_params(causal=True)),
        Property("order of keys does not matter", _key_order),
        Property("linear in v", _doubled_values),
    ],
)


def sdpa(q, k, v, causal, scale, **_):
    """torch's attention, whatever kernel it chooses: o."""
    from torch.nn.attention.bias import causal_lower_right  # imports triton

    mask = causal_lower_right(q.shape[2], k.shape[2]) if causal and q.shape[2] != k.shape[2] else None
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def with_kernel(kernel: SDPBackend):
    """`sdpa` by one of torch's kernels."""

    def fn(**arguments):
        with sdpa_kernel(kernel):
            return sdpa(**arguments)

    return fn


def _baseline(name: str, kernel: SDPBackend, **about) -> Baseline:
    fn = with_kernel(kernel)
    return Baseline(name, lambda arguments: lambda: {"o": fn(**arguments)}, **about)


def flex(q, k, v, causal, scale, **_):
    """Inductor's attention template: o. Compiled for one shape."""
    from torch.nn.attention import flex_attention as module

    block = None
    if causal:
        seq_q, seq_k = q.shape[2], k.shape[2]
        block = module.create_block_mask(
            lambda b, h, i, j: j <= i + seq_k - seq_q, None, None, seq_q, seq_k, device=q.device
        )
    made = torch.compile(module.flex_attention, dynamic=False)
    return lambda q, k, v: made(q, k, v, block_mask=block, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def _flex(arguments: Arguments) -> Call:
    fn = flex(**arguments)
    return lambda: {"o": fn(arguments["q"], arguments["k"], arguments["v"])}


KERNELS = {
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}
NARROW = ("float16", "bfloat16")  # what the first two take
bench = Bench(
    baselines=[
        *(
            _baseline(name, kernel, devices=("cuda",), dtypes=None if "efficient" in name else NARROW)
            for name, kernel in KERNELS.items()
        ),
        _baseline("SDPA unfused", SDPBackend.MATH),
        Baseline("flex_attention", _flex, devices=("cuda",), compiles=True),
    ],
    dtypes=("float16",),
    params={"causal": (False, True)},
    independent_axes=(("B",), ("Hq", "Hkv")),
)
