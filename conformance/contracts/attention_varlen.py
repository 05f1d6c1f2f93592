"""attention_varlen(q, k, v, cu_q, cu_k, *, max_q, max_k, causal, scale): o and lse of sequences that lie one after
another; rows behind the last one hold anything, and their o is 0 and their lse -inf."""

from typing import Any

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _sequences as packing
from touchstone.conformance.contracts import attention
from touchstone.conformance.contracts._laws import equals_op
from touchstone.conformance.contracts._sequences import BEHIND, LAYOUTS, OFFSETS, Whole, alone, apart, reordered, unused
from touchstone.conformance.spec.baselines import Baseline, Bench, eager
from touchstone.conformance.spec.contract import Also, Contract, Invalid, Operand, Output, Property
from touchstone.reference._packing import sequences
from touchstone.reference.attention_varlen import torch_attention_varlen

NAMES = ("o", "lse")


def expect(inputs, params, *, dtype, compute=None):
    """Each sequence is attention's answer over its own rows, with attention's bound."""
    o, lse = torch_attention_varlen(**inputs, **params)
    whole = {"o": Whole(o), "lse": Whole(lse, torch.float32)}
    options = {name: params[name] for name in ("causal", "scale")}
    for rows, keys in sequences(inputs["cu_q"], inputs["cu_k"]):
        found = attention.expect(alone(inputs, rows, keys), options, dtype=dtype, compute=compute)
        for name in NAMES:
            whole[name].put(rows, found[name])
    return {name: whole[name].expected() for name in NAMES}


def _flops(size, param) -> float:
    return 4 * size["Hq"] * packing.pairs(size, param["causal"]) * size["D"] + 1


def _bytes(size, param, item) -> float:
    return 2 * (size["Tq"] * size["Hq"] + size["Tk"] * size["Hkv"]) * size["D"] * item + 4 * size["Tq"] * size["Hq"]


def _one_sequence(arguments, case):
    """The last sequence that has rows and keys, as the only one."""
    every = sequences(arguments["cu_q"].tolist(), arguments["cu_k"].tolist())
    rows, keys = next((r, k) for r, k in reversed(every) if r.stop > r.start and k.stop > k.start)
    own = {name: arguments[name][keys if name in ("k", "v") else rows] for name in ("q", "k", "v")}
    cu = {f"cu_{x}": arguments[f"cu_{x}"].new_tensor([0, len(own[x])]) for x in "qk"}
    return {**arguments, **own, **cu, "max_q": len(own["q"]), "max_k": len(own["k"])}


def _of_attention(exact, case):
    own = {name: exact[name].transpose(0, 1)[None] for name in ("q", "k", "v")}
    return attention.expect(own, {name: exact[name] for name in ("causal", "scale")}, dtype=case.torch_dtype)


def _as_attention(name, tensor):
    return (tensor.transpose(0, 1) if name == "o" else tensor)[None]


def _order_of_sequences(call, arguments, outputs, case):
    moved, rows, _ = reordered(arguments, packing.turned(case))
    o, lse = call(**moved)
    off = max(apart(o, outputs[0][rows]), apart(lse, outputs[1][:, rows]))
    return None if off <= 16 else f"sequences in another order move the answer by {off:.3g} eps"


def _the_last_is_left_out(call, arguments, outputs, case):
    """Rows behind the sequences are 0, and their lse -inf, though they belonged to one in the call before."""
    changed, ends = packing.without_the_last(arguments)
    o, lse = call(**changed)
    at = ends["q"]
    if o[at:].count_nonzero() or not bool((lse[:, at:] == -torch.inf).all()):
        return "rows behind the last sequence are not 0, or their lse not -inf"
    off = max(apart(o[:at], outputs[0][:at]), apart(lse[:, :at], outputs[1][:, :at]))
    return None if off <= 16 else f"without the last sequence the answer of others moves by {off:.3g} eps"


def _sequences_are_independent(call, arguments, outputs, case):
    """The last sequence keeps its bits when the rows of all others change."""
    first = {x: int(arguments[f"cu_{x}"][-2]) for x in "qk"}
    changed = {}
    for name, x in (("q", "q"), ("k", "k"), ("v", "k")):
        changed[name] = arguments[name].clone()
        changed[name][: first[x]] = 2 * changed[name][: first[x]] + 1
    o, lse = call(**{**arguments, **changed})
    same = torch.equal(o[first["q"] :], outputs[0][first["q"] :])
    same = same and torch.equal(lse[:, first["q"] :], outputs[1][:, first["q"] :])
    return None if same else "the last sequence changed when only the rows of others did"


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _too_wide(arguments):
    return {n: t.new_zeros((*t.shape[:2], 257)) if getattr(t, "ndim", 0) == 3 else t for n, t in arguments.items()}


def _no_offsets(arguments):
    return {n: t[:0] if n.startswith("cu_") else t for n, t in arguments.items()}


contract = Contract(
    numbers=packing.numbers,
    operands={
        "q": Operand("Tq Hq D", LAYOUTS, garbage=unused("q", "cu_q"), unused=BEHIND),
        "k": Operand("Tk Hkv D", LAYOUTS, garbage=unused("k", "cu_k"), unused=BEHIND),
        "v": Operand("Tk Hkv D", LAYOUTS, garbage=unused("v", "cu_k"), unused=BEHIND),
        "cu_q": Operand("N", OFFSETS, torch.int32, fixed=True),
        "cu_k": Operand("N", OFFSETS, torch.int32, fixed=True),
    },
    outputs={"o": Output("Tq Hq D"), "lse": Output("Hq Tq", torch.float32)},
    sizes=packing.SIZES,
    regular=packing.REGULAR,
    over_tiles=packing.OVER_TILES,
    beyond_grid=packing.BEYOND_GRID,
    values={name: packing.family(make) for name, make in packing.FAMILIES.items()},
    params=packing.PARAMS,
    valid=packing.valid,
    expect=expect,
    also=packing.ALSO
    | {
        "many_keys": Also(packing.MANY_KEYS, packing.family(attention.small_addends), dtype="float16"),
        "low_weights": Also(packing.MANY_KEYS, packing.family(attention.low_weights)),
        "low_scores": Also(packing.LOW_SCORES, packing.family(attention.far_below)),
    },
    large=packing.LARGE,
    flops=_flops,
    calls=lambda size, param: size["Hq"] * packing.pairs(size, param["causal"]),
    bytes=_bytes,
    invalid=[
        Invalid("q is 4-D", _spoil("q", lambda q: q[None]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("v has another length", _spoil("v", lambda v: v[1:]), ValueError, r"\bv\b"),
        Invalid("heads of q no multiple", _spoil("q", lambda q: q[:, :3]), ValueError, r"\bq\b.*\bheads\b"),
        Invalid("D above 256", _too_wide, ValueError, r"\bq\b.*257"),
        Invalid("q is float64", _spoil("q", torch.Tensor.double), TypeError, r"\bq\b.*float64"),
        Invalid("v has another dtype", _spoil("v", torch.Tensor.half), TypeError, r"\bv\b"),
        Invalid("cu_q is int64", _spoil("cu_q", torch.Tensor.long), TypeError, r"\bcu_q\b.*int64"),
        Invalid("cu_k is a list", _spoil("cu_k", torch.Tensor.tolist), TypeError, r"\bcu_k\b.*list"),
        Invalid("cu_k has one more", _spoil("cu_k", lambda t: torch.cat([t, t[-1:]])), ValueError, r"\bcu_k\b"),
        Invalid("no offsets", _no_offsets, ValueError, r"\bcu_q\b"),
        Invalid("max_q is negative", _spoil("max_q", lambda n: -1), ValueError, r"\bmax_q\b"),
        Invalid("max_k is negative", _spoil("max_k", lambda n: -1), ValueError, r"\bmax_k\b"),
        Invalid("k is elsewhere", _spoil("k", lambda k: k.to("meta")), ValueError, r"\bk\b.*meta"),
    ],
    properties=[
        equals_op("attention where there is one sequence", _one_sequence, _of_attention, seen_as=_as_attention),
        Property("order of sequences does not matter", _order_of_sequences),
        Property("the last sequence is left out", _the_last_is_left_out),
        Property("sequences are independent", _sequences_are_independent),
    ],
)


def one_by_one(q, k, v, cu_q, cu_k, causal, scale, **_) -> torch.Tensor:
    """torch's attention of each sequence: o."""
    found = torch.zeros_like(q)
    for rows, keys in sequences(cu_q.tolist(), cu_k.tolist()):
        seq_q, seq_k = rows.stop - rows.start, keys.stop - keys.start
        seen = torch.ones(seq_q, seq_k, dtype=torch.bool, device=q.device)
        if causal:
            seen = seen.tril(seq_k - seq_q)
        own_q, own_k, own_v = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        mask = seen if causal and seq_q != seq_k else None
        square = causal and mask is None
        o = F.scaled_dot_product_attention(
            own_q, own_k, own_v, attn_mask=mask, is_causal=square, scale=scale, enable_gqa=True
        )
        found[rows] = o[0].transpose(0, 1).masked_fill(~seen.any(1)[:, None, None], 0)
    return found


def torch_varlen(q, k, v, cu_q, cu_k, max_q, max_k, causal, scale, **_) -> torch.Tensor:
    """torch's own form of the op: o."""
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0 if causal else -1)
    grouped: Any = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}  # which torch 2.11 does not know
    o = varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, scale=scale, window_size=window, **grouped)
    assert isinstance(o, torch.Tensor)
    return o


def _torch_varlen(arguments):
    return lambda: {"o": torch_varlen(**arguments)}


bench = Bench(
    baselines=[
        Baseline("torch varlen_attn", _torch_varlen, devices=("cuda",), dtypes=attention.NARROW),
        eager("SDPA a sequence at a time", lambda **arguments: {"o": one_by_one(**arguments)}),
    ],
    dtypes=("float16",),
    params={"causal": (False, True)},
    independent_axes=(("Hq", "Hkv"),),
)
