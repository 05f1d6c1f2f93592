"""masked_attention(q, k, v, bias, slopes, seg_q, seg_k, *, causal, window, softcap, scale, p, seed, offset): o and lse,
each of the optional operands and parameters alone and several at once."""

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _dropout, attention
from touchstone.conformance.contracts._attention import Mods, forward_bounds, probabilities
from touchstone.conformance.contracts._bounds_dots import lossy
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Baseline, Bench
from touchstone.conformance.spec.budget import Scalar
from touchstone.conformance.spec.contract import (
    Also,
    Contract,
    Draw,
    Invalid,
    Operand,
    Output,
    Property,
    Regular,
    with_params,
)
from touchstone.reference import _masks
from touchstone.reference.attention import torch_attention
from touchstone.reference.masked_attention import torch_masked_attention

SIZES = [
    dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, Sk=seq_k, D=dim)
    for batch, heads_q, heads_kv, seq_q, seq_k, dim in [
        (2, 4, 2, 9, 13, 16),
        (1, 1, 1, 1, 1, 64),
        (1, 2, 1, 0, 5, 16),
        (1, 2, 2, 3, 0, 16),
        (2, 2, 1, 40, 65, 24),
        (1, 2, 2, 70, 33, 8),
        (1, 6, 2, 3, 1031, 16),
        (1, 1, 1, 300, 9, 8),
    ]
]
REGULAR = Regular(
    sizes=[
        dict(B=batch, Hq=heads, Hkv=heads, Sq=seq, Sk=seq, D=dim)
        for batch, heads, seq, dim in [(1, 2, 64, 64), (2, 1, 64, 64), (1, 1, 128, 64), (1, 1, 64, 128)]
    ],
    params={"causal": (False, True), "window": (None, 20)},
)
BEYOND_GRID = [dict(B=2, Hq=34501, Hkv=1, Sq=1, Sk=3, D=4)]
LARGE = [
    dict(B=batch, Hq=heads, Hkv=heads, Sq=seq, Sk=seq, D=dim)
    for batch, heads, seq, dim in [(4, 16, 4096, 128), (2, 16, 8192, 128), (2, 32, 8192, 64)]
]
PARAMS = {
    "causal": (False, True),
    "window": (None, 3, 20, 1),
    "softcap": (None, 2.5),
    "scale": (None, -0.3),
    "p": (0.0, 0.3),
    "seed": (0, 2**40 + 16),
    "offset": (0, 2**35 + 1),
}
OPTIONAL = ("bias", "slopes", "seg_q", "seg_k")
SOME = ("contiguous", "heads_inside", "step", "offset")  # layouts: there are many axes
BIAS = ("none", "contiguous", "transposed", "broadcast", "broadcast_second", "sliced")
OPERANDS = {  # bias and slopes are None in the plain cases, where they thus do not count; without segments are the laws
    "bias": Operand("B Hq Sq Sk", BIAS, counts=False),
    "slopes": Operand("Hq", ("none", "contiguous", "step"), torch.float32, counts=False),
    "seg_q": Operand("B Sq", ("contiguous", "step", "sliced"), torch.int32),
    "seg_k": Operand("B Sk", ("contiguous", "step", "sliced"), torch.int32),
}


def mods_of(inputs, params, scale: float) -> Mods:
    """What the operands and parameters of a call do to its scores."""
    q, k, bias, slopes = (inputs[name] for name in ("q", "k", "bias", "slopes"))
    softcap, shape = params["softcap"], (*q.shape[:3], k.shape[2])
    dots = scale * q @ k.repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1).mT
    segments, (causal, window) = (inputs["seg_q"], inputs["seg_k"]), (params["causal"], params["window"])
    seen = _masks.visible(shape[2], shape[3], *segments, causal=causal, window=window)
    more = torch.zeros(shape, dtype=dots.dtype) if softcap is None else torch.full(shape, 2 * softcap).to(dots)
    if slopes is not None:
        more = more + slopes.abs()[:, None, None] * torch.from_numpy(abs(_masks.apart(*shape[2:])))
    if bias is not None:
        more = more + bias.abs().masked_fill(bias.isinf(), 0.0)
    slope: Scalar = 1.0 if softcap is None else 1 - torch.tanh(dots / softcap).square()
    kept: Scalar = 1.0
    if params["p"] > 0:
        kept = _masks.weights(shape, **{name: params[name] for name in ("p", "seed", "offset")})
    scores = _masks.changed(dots, bias, slopes, softcap=softcap)
    return Mods(scores, seen.expand(shape), more, slope, softcap, kept)


def expect(inputs, params, *, dtype, compute=None):
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    scale, compute = attention.softmax_scale(params["scale"], q.shape[-1]), lossy(compute, dtype)
    o, lse = torch_masked_attention(**inputs, **params)
    at = probabilities(q, k, lse, scale=scale, compute=compute, mods=mods_of(inputs, params, scale))
    return forward_bounds(v, o, lse, at, dtype=dtype, compute=compute)


def starts_of(seq_k: int, length: int) -> list[int]:
    """Where documents of about `length` keys start, longer and shorter by turns."""
    starts, total = [], 0
    while total < seq_k:
        starts.append(total)
        total += length + (len(starts) % 3 - 1) * (length // 2)
    return starts


def length_of(size, b: int) -> int:
    """About how many keys the documents of a sequence have; where speed matters a quarter of them."""
    seq_k = size["Sk"]
    return (6 if seq_k < 20 else 23 if seq_k < 1024 else seq_k // 4) + 3 * b


def segments(seq_q: int, seq_k: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of queries and keys in documents; queries belong to the last keys. A query before the first key sees nothing."""
    starts = starts_of(seq_k, length)
    of_keys = (torch.arange(seq_k)[:, None] >= torch.tensor(starts or [0])).sum(1) * 7
    own = torch.arange(seq_q) + seq_k - seq_q
    of_queries = of_keys[own.clamp(0)] if seq_k else own
    return torch.where(own < 0, -1, of_queries).double(), of_keys.double()


def changes(draw: Draw) -> dict[str, torch.Tensor | None]:
    """The optional operands that a case has."""
    size, given = draw.size, {name for name in OPTIONAL if draw.case.layout[name] != "none"}
    found: dict[str, torch.Tensor | None] = dict.fromkeys(OPTIONAL)
    if "bias" in given:
        found["bias"] = 1.5 * draw.normal(draw.shape("bias"))
    if "slopes" in given:
        found["slopes"] = torch.exp2(-1 - torch.arange(size["Hq"], dtype=torch.float64))
    each = [segments(size["Sq"], size["Sk"], length_of(size, b)) for b in range(size["B"])]
    found["seg_q"], found["seg_k"] = (torch.stack(of) for of in zip(*each, strict=True))
    return found


def _hiding(draw: Draw):
    """A bias of -inf for every fourth pair and for all keys of one query; segments that are not in order, and of whose
    numbers float32 does not tell two apart."""
    numbers = torch.tensor([-3, 0, 2**30, 2**30 + 1], dtype=torch.float64)
    drawn = {**dict(zip("qkv", attention.heads(draw), strict=True)), **changes(draw)}
    if drawn["bias"] is not None:
        drawn["bias"] = drawn["bias"].masked_fill(draw.uniform(draw.shape("bias")) < 0.25, -math.inf)
        drawn["bias"][..., -2:-1, :] = -math.inf
    for name in ("seg_q", "seg_k"):
        drawn[name] = numbers[draw.integers(draw.shape(name), 0, len(numbers)).long()]
    return drawn


def _family(make):
    return lambda draw: {**dict(zip("qkv", make(draw), strict=True)), **changes(draw)}


def _beyond_largest(draw: Draw):
    """Values near the largest number, of one sign a column: o is beyond it where dropout keeps enough of the weights.
    Of bfloat16 sums that are not divided yet would be beyond float32."""
    q, k, _ = attention.heads(draw)
    v = draw.of_largest("v", 0.75, 1.0)
    v[..., ::2] *= -1
    return q, k, v


def coming_back(draw: Draw):
    """Documents of which every other one has one number, alike for queries and keys."""
    length = draw.size["Sk"]
    numbers = (torch.arange(length) // 7 % 2 * 7).double().expand(draw.size["B"], length)
    return _family(attention.heads)(draw) | {"seg_q": numbers, "seg_k": numbers}


def last_keys_favoured(draw: Draw):
    """Beside the last keys of more than 2^16 the others hardly count."""
    drawn = _family(attention.heads)(draw)
    drawn["bias"][..., -20:] += 16
    return drawn


def pairs(size, param) -> float:
    """Pairs of a query and a key of one document that causality and the window let through."""
    seq_q, seq_k, total = size["Sq"], size["Sk"], 0.0
    for b in range(size["B"]):
        for first, end in pairwise([*starts_of(seq_k, length_of(size, b)), seq_k]):
            queries = max(0, end - max(first, seq_k - seq_q))
            total += _masks.pairs(queries, end - first, causal=param["causal"], window=param["window"])
    return size["Hq"] * total


def flops(size, param) -> float:
    return 4 * pairs(size, param) * size["D"]


def _calls(size, param) -> float:
    return pairs(size, param) * (1 + (param["softcap"] is not None) + (param["p"] > 0))


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["B"] * size["Hkv"] * size["Sk"]
    return 2 * (queries + keys) * size["D"] * item + 4 * queries


# the laws

NO_OPERANDS = dict.fromkeys(OPTIONAL)
NO_MODS = {**NO_OPERANDS, "window": None, "softcap": None, "p": 0.0}


def _further_off(found, wanted, dtype) -> float:
    """How many times what two right kernels may be apart."""
    eps = torch.finfo(dtype).eps
    limit = 16 * eps * max(1.0, wanted[0].abs().max().item())
    nothing = wanted[1].isneginf()
    if not torch.equal(nothing, found[1].isneginf()):
        return math.inf
    lse_off = torch.where(nothing, 0.0, (found[1] - wanted[1]).abs() / 2**-17).max().item()
    return max((found[0] - wanted[0]).abs().max().item() / limit, lse_off / 8)


def is_cut(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether results are cut instead of rounded to nearest: on average half a unit too small."""
    eps, counts = torch.finfo(found.dtype).eps, wanted.abs() > 0.05
    off = (found.double().cpu().abs() - wanted.abs()) / (eps * wanted.abs())
    return bool(counts.any()) and off[counts].clamp(-1, 1).mean().item() < -0.2


def _is_attention(call, arguments, outputs, case):
    plain = {**arguments, **NO_MODS, "causal": True}
    exact = [arguments[name].double().cpu() for name in ("q", "k", "v")]
    wanted, given = torch_attention(*exact, causal=True), call(**plain)
    if case.dtype != "float32" and is_cut(given[0], wanted[0]):
        return "o is cut instead of rounded to nearest"
    off = _further_off([t.double().cpu() for t in given], wanted, case.torch_dtype)
    return None if off <= 1 else f"without bias, window, segments and the rest it is not attention: {off:.3g} times off"


def _wide_window(call, arguments, outputs, case):
    for causal in (False, True):
        plain = {**arguments, **NO_MODS, "causal": causal}
        wide = call(**{**plain, "window": case.size["Sq"] + case.size["Sk"]})
        if _further_off(wide, call(**plain), case.torch_dtype) > 1:
            return f"causal={causal}: a window as long as the sequence hides something"
    return None


def _exact_window(call, arguments, outputs, case):
    """q = 0 and v = 1 at one key: o is 1 over the number of keys that are seen, and lse its logarithm."""
    size = case.size
    zero = {"q": torch.zeros_like(arguments["q"]), "k": arguments["k"], "v": torch.ones_like(arguments["v"])}
    for causal, window in ((True, 1), (True, 3), (False, 3)):
        seen = torch.from_numpy(_masks.within(size["Sq"], size["Sk"], causal=causal, window=window)).sum(1)
        lse = call(**{**arguments, **NO_MODS, **zero, "causal": causal, "window": window})[1].double().cpu()
        found, wanted = lse.exp().round(), seen.expand(lse.shape)
        if not torch.equal(found, wanted.double()):
            first = tuple((found != wanted).nonzero()[0].tolist())
            given = f"{found[first].item():.0f} keys, not {wanted[first].item()}"
            return f"causal={causal}, window={window}: query {first[-1]} of {size['Sq']} sees {given} of {size['Sk']}"
    return None


def _hidden_keys(call, arguments, outputs, case):
    """Changed keys outside the window, in other segments and under a bias of -inf leave a query's bits alone."""
    given = {**arguments, **NO_MODS, **_given(arguments, case)}
    seg_q, seg_k = (t.to(arguments["q"].device) for t in int_segments(case))
    one = given["bias"].clone()
    one[..., 2] = -math.inf
    own = torch.from_numpy(_masks.apart(case.size["Sq"], case.size["Sk"]))
    for what, mods, hidden in (
        ("outside the window", {"window": 3, "causal": True, "bias": None}, (own < 0) | (own >= 3)),
        ("of other segments", {"seg_q": seg_q, "seg_k": seg_k, "bias": None}, (seg_q[0][:, None] != seg_k[0]).cpu()),
        ("under a bias of -inf", {"bias": one}, torch.arange(case.size["Sk"]).expand(own.shape) == 2),
    ):
        before = call(**{**given, **mods})
        for key in range(case.size["Sk"]):
            blind = hidden[:, key].to(before[0].device)
            if key % 5 != 2 or not bool(blind.any()):
                continue
            spoiled = {name: arguments[name].clone() for name in ("k", "v")}
            for tensor in spoiled.values():
                tensor[:, :, key] = 2 * tensor[:, :, key] + 1
            after = call(**{**given, **mods, **spoiled})
            if any(not torch.equal(x[:, :, blind], y[:, :, blind]) for x, y in zip(before, after, strict=True)):
                return f"a key {what} has changed, and with it queries that do not see it"
    return None


def _given(arguments, case) -> dict[str, torch.Tensor]:
    """A bias of ones."""
    size, q = case.size, arguments["q"]
    return {"bias": torch.ones((size["B"], size["Hq"], size["Sq"], size["Sk"]), dtype=q.dtype, device=q.device)}


def int_segments(case) -> tuple[torch.Tensor, ...]:
    size = case.size
    found = segments(size["Sq"], size["Sk"], 6)
    return tuple(t.to(torch.int32).repeat(size["B"], 1) for t in found)


def _constant_bias(call, arguments, outputs, case):
    plain = {**arguments, **NO_MODS, "causal": True}
    before, after = call(**plain), call(**{**plain, **_given(arguments, case)})
    off = _further_off((after[0], after[1] - 1), before, case.torch_dtype)
    return None if off <= 1 else f"a bias of 1 everywhere moves o, or lse by other than 1: {off:.3g} times off"


def _documents(call, arguments, outputs, case):
    """Segments in order are documents: each is attention over its own queries and keys."""
    seg_q, seg_k = int_segments(case)
    device = arguments["q"].device
    named = {"seg_q": seg_q.to(device), "seg_k": seg_k.to(device)}
    found = [t.double().cpu() for t in call(**{**arguments, **NO_MODS, "causal": False, **named})]
    for segment in seg_k[0].unique().tolist():
        queries, keys = seg_q[0] == segment, seg_k[0] == segment
        if not bool(queries.any()):
            continue
        own = [arguments[n].double().cpu()[:, :, queries if n == "q" else keys] for n in ("q", "k", "v")]
        off = _further_off([t[:, :, queries] for t in found], torch_attention(*own), case.torch_dtype)
        if off > 1:
            return f"document {segment} is not attention over its own queries and keys: {off:.3g} times off"
    return None


def _each_alone(call, arguments, outputs, case):
    """The answer with one of them at a time, as with none and with several."""
    size, rng, q = case.size, case.rng("alone"), arguments["q"]
    bias = torch.randn((size["B"], size["Hq"], size["Sq"], size["Sk"]), generator=rng).to(q.dtype)
    slopes = torch.linspace(0.6, 0.1, size["Hq"])
    seg_q, seg_k = int_segments(case)
    exact = {name: arguments[name].double().cpu() for name in ("q", "k", "v")}
    for mods in (
        {"bias": bias},
        {"slopes": slopes},
        {"softcap": 0.7},
        {"seg_q": seg_q, "seg_k": seg_k},
        {"p": 0.4, "seed": 2**33 + 5, "offset": 2**33 + 3},
    ):
        there = {name: x.to(q.device) if isinstance(x, torch.Tensor) else x for name, x in mods.items()}
        found = call(**{**arguments, **NO_MODS, "seed": 0, "offset": 0, "causal": False, **there})
        wide = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in mods.items()}
        wanted = torch_masked_attention(**{**NO_OPERANDS, **exact, **wide})
        off = _further_off([t.double().cpu() for t in found], wanted, case.torch_dtype)
        if off > 1:
            return f"with {' and '.join(mods)} alone: {off:.3g} times off"
    return None


def _stream(call, arguments, outputs, case):
    """lse is that without dropout; p = 1 leaves nothing; another seed or offset is another mask."""
    plain = {**arguments, **NO_MODS, "causal": False}
    whole = call(**plain)
    dropped = [call(**{**plain, "p": 0.5, **stream}) for stream in ({}, {"seed": 2**32}, {"offset": 2**32})]
    if _further_off((whole[0], dropped[0][1]), whole, case.torch_dtype) > 1:  # to the bit only where compiled alike
        return "dropout changes lse"
    if any(torch.equal(dropped[0][0], other[0]) for other in dropped[1:]):
        return "a seed or an offset that is another by 2^32 drops the same"
    return "p = 1 leaves something" if call(**{**plain, "p": 1.0})[0].count_nonzero() else None


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _with(**given):
    """A call with operands that are made from q and k."""
    return lambda arguments: {**arguments, **{n: make(arguments["q"], arguments["k"]) for n, make in given.items()}}


def _bias(q, k, **about):
    return q.new_zeros((*q.shape[:3], k.shape[2]), **about)


def _segments(x, **about):
    return torch.zeros((x.shape[0], x.shape[2]), dtype=torch.int32, device=x.device, **about)


OF_MODS = [
    Invalid(
        "bias has one key more",
        _with(bias=lambda q, k: q.new_zeros((*q.shape[:3], k.shape[2] + 1))),
        ValueError,
        r"\bbias\b",
    ),
    Invalid("bias has another dtype", _with(bias=lambda q, k: _bias(q, k).half()), TypeError, r"\bbias\b"),
    Invalid("bias is 2-D", _with(bias=lambda q, k: _bias(q, k)[0, 0]), ValueError, r"\bbias\b"),
    Invalid(
        "slopes of one more head", _with(slopes=lambda q, k: torch.zeros(q.shape[1] + 1)), ValueError, r"\bslopes\b"
    ),
    Invalid("slopes are float16", _with(slopes=lambda q, k: torch.zeros(q.shape[1]).half()), TypeError, r"\bslopes\b"),
    Invalid("seg_q without seg_k", _with(seg_k=lambda q, k: None), ValueError, r"\bseg_k\b"),
    Invalid(
        "seg_k of the queries",
        _with(seg_q=lambda q, k: _segments(q), seg_k=lambda q, k: _segments(q)),
        ValueError,
        r"\bseg_k\b",
    ),
    Invalid(
        "seg_q is int64",
        _with(seg_q=lambda q, k: _segments(q).long(), seg_k=lambda q, k: _segments(k)),
        TypeError,
        r"\bseg_q\b",
    ),
    Invalid("window is 0", lambda arguments: {**arguments, "window": 0}, ValueError, r"\bwindow\b"),
    Invalid("softcap is 0", lambda arguments: {**arguments, "softcap": 0.0}, ValueError, r"\bsoftcap\b"),
    *_dropout.invalid("p", "seed", "offset"),
]

NO_SEGMENTS = {"seg_q": "none", "seg_k": "none"}
SQUARE = dict(B=2, Hq=2, Hkv=1, Sq=40, Sk=40, D=16)
ALSO = {
    # as many queries as keys, whose biases of either may be taken for the other's
    "square": Also(SQUARE, layouts={"bias": "contiguous", "slopes": "contiguous"} | NO_SEGMENTS),
    # windows of more than a tile of keys, which a kernel skips to the first of, in one document
    "wide_window": Also(
        dict(B=1, Hq=2, Hkv=1, Sq=150, Sk=300, D=16), None, {"causal": True, "window": 100}, NO_SEGMENTS, "float16"
    ),
    "wide_window_both_sides": Also(
        dict(B=1, Hq=2, Hkv=1, Sq=300, Sk=150, D=16), None, {"window": 100}, NO_SEGMENTS, "bfloat16"
    ),
    # a window wider than all keys, which the first queries, Sq - Sk before the first key, do not see all the same
    "window_beyond_all_keys": Also(dict(B=1, Hq=2, Hkv=1, Sq=300, Sk=150, D=16), None, {"window": 200}, NO_SEGMENTS),
    # rows that see nothing, whose capped scores no sentinel may be among
    "capped_rows_of_nothing": Also(
        dict(B=2, Hq=2, Hkv=1, Sq=40, Sk=24, D=16), None, {"causal": True, "softcap": 2.5}, NO_SEGMENTS
    ),
}

# Kernels that know one of these refuse two of them at a time, as the other cases have them. (Of segments there are
# regular cases.)
OPTIONS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("nothing", [], {}),
    ("slopes", ["slopes"], {}),
    ("bias", ["bias"], {}),
    ("window", [], {"window": 20}),
    ("softcap", [], {"softcap": 2.5}),
    ("dropout", [], {"p": 0.3, "seed": 2**40 + 16}),
]
ALONE = {
    f"{name}_alone{'_causal' * causal}": Also(
        dict(B=1, Hq=2, Hkv=2, Sq=64, Sk=64, D=64),
        None,
        {"causal": causal, **params},
        dict.fromkeys(OPTIONAL, "none") | dict.fromkeys(given, "contiguous"),
        "float16",
    )
    for name, given, params in OPTIONS
    for causal in (False, True)
}
ALSO |= ALONE
BIAS_BEYOND_16_BITS = Also(
    dict(B=1, Hq=1, Hkv=1, Sq=1, Sk=65603, D=8),
    last_keys_favoured,
    layouts={"bias": "contiguous", "slopes": "none"} | NO_SEGMENTS,
)

contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", layouts.HEADS),
        "v": Operand("B Hkv Sk D", SOME),
        **OPERANDS,
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
    over_tiles=attention.OVER_TILES,
    beyond_grid=BEYOND_GRID,
    also=attention.ALSO
    | ALSO
    | {
        "many_keys": Also(attention.MANY_KEYS, _family(attention.small_addends), dtype="float16"),
        "low_weights": Also(attention.MANY_KEYS, _family(attention.low_weights)),
        "low_scores": Also(attention.LOW_SCORES, _family(attention.far_below)),
        "documents_coming_back": Also(SQUARE, coming_back),
        "bias_beyond_16_bits": BIAS_BEYOND_16_BITS,
    }
    | {
        f"beyond_largest_p_{p}": Also(
            dict(B=2, Hq=2, Hkv=1, Sq=9, Sk=8, D=16), _family(_beyond_largest), {"p": p}, dtype="float16"
        )
        for p in (0.75, 0.875)
    },
    values={
        "normal": _family(attention.heads),
        "hiding": _hiding,
        "growing_keys": _family(attention.growing_keys),
        "large": _family(attention.large),
        "shifted_negative": _family(attention.shifted_negative),
        "cancelling": _family(attention.cancelling),
    },
    params=PARAMS,
    expect=expect,
    large=LARGE,
    flops=flops,
    calls=_calls,
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[:, :, 1:]), ValueError, r"\bv\b"),
        Invalid("heads of q no multiple", _spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("k is elsewhere", _spoil("k", lambda k: k.to("meta")), ValueError, r"\bk\b.*meta"),
        *OF_MODS,
    ],
    properties=[
        Property("attention where nothing is given", _is_attention, elsewhere=with_params(causal=True)),
        Property(
            "each operand and parameter alone", _each_alone, elsewhere=with_params(p=0.4, seed=2**33, offset=2**33)
        ),
        Property("a wide window is none", _wide_window),
        Property("a window has so many keys", _exact_window, elsewhere=with_params(causal=True, window=3)),
        Property("hidden keys do not matter", _hidden_keys, elsewhere=with_params(causal=True, window=3)),
        Property("a constant bias moves lse alone", _constant_bias, elsewhere=with_params(causal=True)),
        Property("segments are documents", _documents),
        Property("dropout is of the product with v alone", _stream, elsewhere=with_params(p=0.5, seed=2**32)),
    ],
)


def shown(arguments) -> torch.Tensor:
    """Booleans (B, 1, Sq, Sk): the causal window and the segments, on the operands' device."""
    sizes, segments = (arguments[n].shape[2] for n in ("q", "k")), (arguments[n] for n in ("seg_q", "seg_k"))
    place = {name: arguments[name] for name in ("causal", "window")}
    return _masks.visible(*sizes, *segments, **place).to(arguments["q"].device)


def _sdpa(arguments):
    seen, (q, k, v) = shown(arguments), (arguments[name] for name in ("q", "k", "v"))
    grouped = q.shape[1] != k.shape[1]
    scale = arguments["scale"]
    return lambda: {"o": F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)}


def _flex(arguments):
    from torch.nn.attention import flex_attention as module

    q, k, v = (arguments[name] for name in ("q", "k", "v"))
    shift, window = k.shape[2] - q.shape[2], arguments["window"] or q.shape[2] + k.shape[2]
    causal, seg_q, seg_k = (arguments[name] for name in ("causal", "seg_q", "seg_k"))

    def seen(b, h, i, j):
        apart = i + shift - j
        near = (apart < window) & (seg_q[b, i] == seg_k[b, j])
        return near & (apart >= 0) if causal else near & (-apart < window)

    block = module.create_block_mask(seen, q.shape[0], None, q.shape[2], k.shape[2], device=q.device)
    made = torch.compile(module.flex_attention, dynamic=False)
    about = {"block_mask": block, "scale": arguments["scale"], "enable_gqa": q.shape[1] != k.shape[1]}
    return lambda: {"o": made(q, k, v, **about)}


bench = Bench(
    baselines=[
        Baseline("SDPA with a mask", _sdpa),
        Baseline("flex_attention", _flex, devices=("cuda",), compiles=True),
    ],
    dtypes=("float16",),
    params={"causal": (True,), "window": (None, 1024)},
    independent_axes=(("B",), ("Hq", "Hkv")),
)
