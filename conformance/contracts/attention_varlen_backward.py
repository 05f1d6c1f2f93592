"""attention_varlen_backward(q, k, v, o, lse, do, cu_q, cu_k, *, max_q, max_k, causal, scale): dq, dk, dv, with o and
lse as attention_varlen returns them. Rows behind the last sequence hold anything, and their gradients are 0."""

from dataclasses import replace

import torch

from touchstone.conformance.contracts import _sequences as packing
from touchstone.conformance.contracts import attention, attention_backward, attention_varlen
from touchstone.conformance.contracts._sequences import BEHIND, LAYOUTS, OFFSETS, Whole, alone, apart, reordered, unused
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Also, Contract, Invalid, Operand, Output, Property
from touchstone.reference._packing import sequences
from touchstone.reference.attention_varlen import torch_attention_varlen
from touchstone.reference.attention_varlen_backward import torch_attention_varlen_backward

NAMES = ("dq", "dk", "dv")
OF_QUERIES = ("q", "o", "do")


def _derive(exact, params):
    """o and lse of the rounded q, k, v."""
    operands = [exact[name] for name in ("q", "k", "v", "cu_q", "cu_k")]
    return dict(zip(("o", "lse"), torch_attention_varlen(*operands, **params), strict=True))


def expect(inputs, params, *, dtype, compute=None):
    """Each sequence is attention_backward's answer over its own rows, with that op's bound."""
    found = torch_attention_varlen_backward(**inputs, **params)
    whole = {name: Whole(gradient) for name, gradient in zip(NAMES, found, strict=True)}
    options = {name: params[name] for name in ("causal", "scale")}
    for rows, keys in sequences(inputs["cu_q"], inputs["cu_k"]):
        of_one = attention_backward.expect(alone(inputs, rows, keys), options, dtype=dtype, compute=compute)
        for name in NAMES:
            whole[name].put(rows if name == "dq" else keys, of_one[name])
    return {name: whole[name].expected() for name in NAMES}


def _valid(case) -> bool:
    if case.values == "cancelling_queries":
        return case.size["Sq"] >= 100 and not case.param["causal"] and case.param["scale"] != 0
    return packing.valid(case)


def _bytes(size, param, item) -> float:
    return 4 * (size["Tq"] * size["Hq"] + size["Tk"] * size["Hkv"]) * size["D"] * item + 4 * size["Tq"] * size["Hq"]


def _zero_gradient(call, arguments, outputs, case):
    found = call(**{**arguments, "do": torch.zeros_like(arguments["do"])})
    left = [name for name, gradient in zip(NAMES, found, strict=True) if gradient.count_nonzero()]
    return f"do = 0 leaves {', '.join(left)} unlike 0" if left else None


def _one_sequence(call, arguments, outputs, case):
    """The last sequence that has rows and keys, as the only one, is attention's backward."""
    every = sequences(arguments["cu_q"].tolist(), arguments["cu_k"].tolist())
    rows, keys = next((r, k) for r, k in reversed(every) if r.stop > r.start and k.stop > k.start)
    own = {name: arguments[name][rows] for name in OF_QUERIES} | {name: arguments[name][keys] for name in ("k", "v")}
    own["lse"] = arguments["lse"][:, rows]
    cu = {f"cu_{x}": arguments[f"cu_{x}"].new_tensor([0, len(own[x])]) for x in "qk"}
    found = call(**{**arguments, **own, **cu, "max_q": len(own["q"]), "max_k": len(own["k"])})
    exact = alone({name: x.cpu().double() for name, x in own.items()}, slice(None), slice(None))
    options = {name: arguments[name] for name in ("causal", "scale")}
    expected = attention_backward.expect(exact, options, dtype=case.torch_dtype)
    for name, got in zip(NAMES, found, strict=True):
        if not compare(got.transpose(0, 1)[None], expected[name], case.torch_dtype).ok:
            return f"{name} of one sequence is not attention's"
    return None


def _order_of_sequences(call, arguments, outputs, case):
    moved, rows, keys = reordered(arguments, packing.turned(case))
    found = call(**moved)
    off = max(apart(got, was[at]) for got, was, at in zip(found, outputs, (rows, keys, keys), strict=True))
    return None if off <= 16 else f"sequences in another order move the gradients by {off:.3g} eps"


def _the_last_is_left_out(call, arguments, outputs, case):
    """The gradients of rows behind the sequences are 0, though they belonged to one in the call before."""
    changed, ends = packing.without_the_last(arguments)
    for name, got, was, at in zip(NAMES, call(**changed), outputs, (ends["q"], ends["k"], ends["k"]), strict=True):
        if got[at:].count_nonzero():
            return f"{name} of rows behind the last sequence is not 0"
        if (off := apart(got[:at], was[:at])) > 16:
            return f"without the last sequence {name} of others moves by {off:.3g} eps"
    return None


def _sequences_are_independent(call, arguments, outputs, case):
    """The last sequence keeps its bits when the do of all others changes."""
    first = {x: int(arguments[f"cu_{x}"][-2]) for x in "qk"}
    do = arguments["do"].clone()
    do[: first["q"]] = 2 * do[: first["q"]] + 1
    found = call(**{**arguments, "do": do})
    begins = (first["q"], first["k"], first["k"])
    same = all(torch.equal(got[at:], was[at:]) for got, was, at in zip(found, outputs, begins, strict=True))
    return None if same else "the last sequence changed when only the do of others did"


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _too_wide(arguments):
    return {n: t.new_zeros((*t.shape[:2], 257)) if getattr(t, "ndim", 0) == 3 else t for n, t in arguments.items()}


def _fewer_heads(arguments):
    changed = {name: arguments[name][:, :3] for name in OF_QUERIES}
    return {**arguments, **changed, "lse": arguments["lse"][:3]}


def _alone(one: Also) -> Also:
    """A case of attention_backward's as the only sequence."""
    size, make = one.size, one.values
    of_one = dict(N=2, Tq=size["Sq"], Tk=size["Sk"], Sq=size["Sq"], Sk=size["Sk"])
    heads = {name: size[name] for name in ("Hq", "Hkv", "D")}
    return replace(one, size=of_one | heads, values=packing.packed(make) if callable(make) else make)


ALSO = {
    **packing.ALSO,
    **{
        name: _alone(one)
        for cases in (attention_backward.SMALL_ADDENDS, attention_backward.NEG_INF, attention_backward.BEYOND_LARGEST)
        for name, one in cases.items()
    },
    "many_keys": Also(packing.MANY_KEYS),
    "low_scores": Also(packing.LOW_SCORES, packing.packed(attention_backward.contract.values["far_below"])),
}
contract = Contract(
    numbers=packing.numbers,
    gradient_of="attention_varlen",
    operands={
        "q": Operand("Tq Hq D", LAYOUTS, garbage=unused("q", "cu_q"), unused=BEHIND),
        "k": Operand("Tk Hkv D", LAYOUTS, garbage=unused("k", "cu_k"), unused=BEHIND),
        "v": Operand("Tk Hkv D", LAYOUTS, garbage=unused("v", "cu_k"), unused=BEHIND),
        "o": Operand("Tq Hq D", LAYOUTS, derived=True, garbage=unused("o", "cu_q"), unused=BEHIND),
        "lse": Operand(
            "Hq Tq",
            ("contiguous", "transposed", "step", "offset"),
            torch.float32,
            derived=True,
            garbage=unused("lse", "cu_q"),
            unused=BEHIND,
        ),
        "do": Operand("Tq Hq D", LAYOUTS, garbage=unused("do", "cu_q"), unused=BEHIND),
        "cu_q": Operand("N", OFFSETS, torch.int32, fixed=True),
        "cu_k": Operand("N", OFFSETS, torch.int32, fixed=True),
    },
    outputs={"dq": Output("Tq Hq D"), "dk": Output("Tk Hkv D"), "dv": Output("Tk Hkv D")},
    sizes=packing.SIZES,
    regular=packing.REGULAR,
    over_tiles=packing.OVER_TILES,
    beyond_grid=packing.BEYOND_GRID,
    values={name: packing.packed(make) for name, make in attention_backward.contract.values.items()},
    params=packing.PARAMS,
    derive=_derive,
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=packing.LARGE,
    flops=lambda size, param: 10 * size["Hq"] * packing.pairs(size, param["causal"]) * size["D"] + 1,
    calls=lambda size, param: 2 * size["Hq"] * packing.pairs(size, param["causal"]),
    bytes=_bytes,
    invalid=[
        Invalid("q is 4-D", _spoil("q", lambda q: q[None]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[1:]), ValueError, r"\bv\b"),
        Invalid("o has another length", _spoil("o", lambda o: o[1:]), ValueError, r"\bo\b"),
        Invalid("lse is (Tq, Hq)", _spoil("lse", lambda lse: lse.mT), ValueError, r"\blse\b"),
        Invalid("do has another D", _spoil("do", lambda do: do[..., 1:]), ValueError, r"\bdo\b"),
        Invalid("heads of q no multiple", _fewer_heads, ValueError, r"\bq\b.*\bheads\b"),
        Invalid("D above 256", _too_wide, ValueError, r"\bq\b.*257"),
        Invalid("do has another dtype", _spoil("do", torch.Tensor.half), TypeError, r"\bdo\b"),
        Invalid("lse is float16", _spoil("lse", torch.Tensor.half), TypeError, r"\blse\b.*float16"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("cu_q is int64", _spoil("cu_q", torch.Tensor.long), TypeError, r"\bcu_q\b.*int64"),
        Invalid("cu_k has one more", _spoil("cu_k", lambda t: torch.cat([t, t[-1:]])), ValueError, r"\bcu_k\b"),
        Invalid("max_q is negative", _spoil("max_q", lambda n: -1), ValueError, r"\bmax_q\b"),
        Invalid("max_k is negative", _spoil("max_k", lambda n: -1), ValueError, r"\bmax_k\b"),
        Invalid("do is elsewhere", _spoil("do", lambda do: do.to("meta")), ValueError, r"\bdo\b.*meta"),
        Invalid("lse is None", lambda arguments: {**arguments, "lse": None}, TypeError, r"\blse\b.*None"),
    ],
    properties=[
        Property("no gradient in, none out", _zero_gradient),
        Property("one sequence is attention", _one_sequence),
        Property("order of sequences does not matter", _order_of_sequences),
        Property("the last sequence is left out", _the_last_is_left_out),
        Property("sequences are independent", _sequences_are_independent),
    ],
)

GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}
bench = Bench(
    baselines=[
        autograd(
            "torch varlen_attn",
            attention_varlen.torch_varlen,
            GRADIENTS,
            "do",
            devices=("cuda",),
            dtypes=attention.NARROW,
        ),
        autograd("SDPA a sequence at a time", attention_varlen.one_by_one, GRADIENTS, "do"),
    ],
    dtypes=("float16",),
    params={"causal": (False, True)},
    independent_axes=(("Hq", "Hkv"),),
)
