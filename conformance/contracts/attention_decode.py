"""attention_decode(q, k, v, lengths, *, scale): o and lse of a few queries over a cache of which each sequence has
filled lengths[b] rows; the others hold anything."""

import torch

from touchstone.conformance.contracts import attention
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Case, Contract, Draw, Invalid, Operand, Output, Property, Regular
from touchstone.reference.attention_decode import torch_attention_decode

SIZES = [
    dict(B=batch, Hq=heads_q, Hkv=heads_kv, Sq=seq_q, Sk=seq_k, D=dim)
    for batch, heads_q, heads_kv, seq_q, seq_k, dim in [
        (3, 4, 2, 1, 24, 16),
        (1, 1, 1, 1, 1, 64),
        (2, 2, 1, 1, 0, 16),
        (2, 8, 1, 2, 96, 40),
        (3, 3, 3, 3, 5, 24),
        (1, 5, 1, 1, 384, 8),
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
LARGE = [
    dict(B=batch, Hq=32, Hkv=heads, Sq=1, Sk=seq, D=128)
    for batch, heads, seq in [(64, 8, 4096), (16, 8, 16384), (1, 8, 131072), (16, 32, 4096)]
]
CACHE = tuple(name for name in layouts.HEADS if name not in layouts.BROADCASTS)
NAMES = ("o", "lse")


def beyond(inputs, params) -> torch.Tensor:
    """(B, 1, Sk, 1): the rows of the cache that are nobody's."""
    cache = inputs["k"]
    return (torch.arange(cache.shape[2]) >= inputs["lengths"][:, None])[:, None, :, None]


def expect(inputs, params, *, dtype, compute=None):
    """Each sequence is attention's causal answer over its own keys, with attention's bound."""
    lengths = inputs["lengths"].long().tolist()
    o, lse = torch_attention_decode(**inputs, **params)
    whole = {name: {"condition": torch.zeros_like(x)} for name, x in zip(NAMES, (o, lse), strict=True)}
    for name in NAMES:
        whole[name] |= {kind: torch.zeros_like(whole[name]["condition"]) for kind in ("terms", "rounding", "extra")}
    for b, length in enumerate(lengths):
        own = {name: inputs[name][b : b + 1, :, : length if name != "q" else None] for name in ("q", "k", "v")}
        found = attention.expect(own, {"causal": True, **params}, dtype=dtype, compute=compute)
        for name in NAMES:
            for terms, condition in found[name].parts:
                whole[name]["terms"][b], whole[name]["condition"][b] = terms, condition[0]
            for kind in ("rounding", "extra"):
                value = getattr(found[name], kind)
                whole[name][kind][b] = value[0] if isinstance(value, torch.Tensor) and value.ndim else value
    answers = {"o": (o, None), "lse": (lse, torch.float32)}
    return {
        name: Expected(
            answer,
            parts=[(whole[name]["terms"], whole[name]["condition"])],
            rounding=whole[name]["rounding"],
            extra=whole[name]["extra"],
            dtype=out,
            drift=0.2,
        )
        for name, (answer, out) in answers.items()
    }


def _lengths(batch: int, seq: int) -> list[int]:
    """Two thirds of the cache, nothing, all of it, one row: in turn. Two thirds of the sizes here are powers of two, so
    that no probability is rounded where the scale is 0."""
    pattern = [seq - seq // 3, 0, seq, min(1, seq)]
    return [pattern[b % len(pattern)] for b in range(batch)]


def _family(make):
    def family(draw: Draw):
        q, k, v = make(draw)
        lengths = _lengths(draw.size["B"], draw.size["Sk"])
        for b, length in enumerate(lengths):
            v[b, :, max(0, length - 1) : length] += 3  # the last key counts
        return {"q": q, "k": k, "v": v, "lengths": torch.tensor(lengths, dtype=torch.float64)}

    return family


def _valid(case) -> bool:
    size = case.size
    if 0 in size.values():
        return case.values == "normal"
    if case.values == "growing_keys" and case.param["scale"] == 0:
        return False
    return size["Sk"] > 1 or case.values in ("normal", "large")


def _pairs(size) -> float:
    """Queries times the keys of their sequences."""
    return size["Hq"] * size["Sq"] * sum(_lengths(size["B"], size["Sk"]))


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["Hkv"] * sum(_lengths(size["B"], size["Sk"]))
    return 2 * (queries + keys) * size["D"] * item + 4 * (queries + size["B"])


def _order_of_keys(call, arguments, outputs, case):
    """Keys that every query sees can change places, so that they fall into other splits."""
    k, v = arguments["k"].clone(), arguments["v"].clone()
    for b, length in enumerate(arguments["lengths"].tolist()):
        seen = max(0, length - case.size["Sq"] + 1)
        order = torch.randperm(seen, generator=case.rng("order")).to(k.device)
        k[b, :, :seen], v[b, :, :seen] = k[b, :, order], v[b, :, order]
    o, lse = call(**{**arguments, "k": k, "v": v})
    empty = outputs[1].isneginf()
    if not torch.equal(empty, lse.isneginf()):
        return "another order of keys changes which queries see something"
    eps = torch.finfo(o.dtype).eps
    apart = torch.where(empty, 0.0, lse - outputs[1]).abs().max().item()
    off = max((o - outputs[0]).abs().max().item() / eps, apart / 2**-18)
    limit = 8 * max(1.0, outputs[0].abs().max().item() + 6)
    return None if off <= limit else f"another order of keys and values moves the answer by {off:.3g} eps"


def _sequences_are_independent(call, arguments, outputs, case):
    """The last sequence keeps its bits when all others are of no length."""
    lengths = arguments["lengths"].clone()
    lengths[:-1] = 0
    again = call(**{**arguments, "lengths": lengths})
    same = all(torch.equal(before[-1], after[-1]) for before, after in zip(outputs, again, strict=True))
    return None if same else "the last sequence changed when only the lengths of others did"


def apart(got, expected: dict[str, Expected], case: Case, of: str) -> str | None:
    """How o and lse differ from what another op answers, None within its budget."""
    for name, value in zip(NAMES, got, strict=True):
        verdict = compare(value, expected[name], case.torch_dtype)
        if not verdict.ok:
            return f"{name} is not {of}: {verdict.message}"
    return None


def _equals_attention(call, arguments, outputs, case):
    """Sequences of full length are attention's causal answer."""
    full = {name: arguments[name].nan_to_num(0.5) for name in ("k", "v")}
    lengths = torch.full_like(arguments["lengths"], case.size["Sk"])
    exact = {name: {**arguments, **full}[name].detach().cpu().double() for name in ("q", "k", "v")}
    params = {"causal": True, "scale": arguments["scale"]}
    expected = attention.expect(exact, params, dtype=case.torch_dtype)
    return apart(call(**{**arguments, **full, "lengths": lengths}), expected, case, "that of attention")


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


contract = Contract(
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", CACHE, garbage=beyond),
        "v": Operand("B Hkv Sk D", CACHE, garbage=beyond),
        "lengths": Operand("B", ("contiguous", "step", "offset"), torch.int32, fixed=True),
    },
    outputs={"o": Output("B Hq Sq D"), "lse": Output("B Hq Sq", torch.float32)},
    sizes=SIZES,
    regular=REGULAR,
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
    large=LARGE,
    flops=lambda size, param: 4 * _pairs(size) * size["D"] + 1,
    calls=lambda size, param: _pairs(size),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[:, :, 1:]), ValueError, r"\bv\b"),
        Invalid("heads of q no multiple", _spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v has another dtype", _spoil("v", torch.Tensor.half), TypeError, r"\bv\b"),
        Invalid("lengths are int64", _spoil("lengths", torch.Tensor.long), TypeError, r"\blengths\b.*int64"),
        Invalid("lengths of one more", _spoil("lengths", lambda t: torch.cat([t, t[:1]])), ValueError, r"\blengths\b"),
        Invalid("lengths is None", _spoil("lengths", lambda t: None), TypeError, r"\blengths\b"),
        Invalid("k is elsewhere", _spoil("k", lambda k: k.to("meta")), ValueError, r"\bk\b.*meta"),
    ],
    properties=[
        Property("order of keys does not matter", _order_of_keys),
        Property("sequences are independent", _sequences_are_independent),
        Property("equals attention on each sequence", _equals_attention),
    ],
)


def _sdpa(q, k, v, lengths, scale, **_):
    seq, queries = k.shape[2], q.shape[2]
    last = torch.arange(queries, device=q.device)[:, None] + lengths[:, None, None, None] - queries
    seen = torch.arange(seq, device=q.device) <= last
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
    return {"o": o}


bench = Bench(baselines=[eager("F.scaled_dot_product_attention", _sdpa)], independent_axes=(("B",), ("Hq", "Hkv")))
