"""masked_attention_backward(q, k, v, o, lse, do, bias, slopes, seg_q, seg_k, *, causal, window, softcap, scale, p,
seed, offset): dq, dk, dv, with o and lse as masked_attention returns them."""

from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.contracts import attention, attention_backward, masked_attention
from touchstone.conformance.contracts._attention import gradient_bounds, probabilities
from touchstone.conformance.contracts._bounds_dots import lossy
from touchstone.conformance.contracts.masked_attention import NO_MODS, OPTIONAL, SOME, is_cut, mods_of, shown
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.contract import Also, Contract, Draw, Invalid, Operand, Output, Property, with_params
from touchstone.reference import _masks
from touchstone.reference.attention_backward import torch_attention_backward
from touchstone.reference.masked_attention import torch_masked_attention
from touchstone.reference.masked_attention_backward import torch_masked_attention_backward


def _derive(exact, params):
    """o and lse of the rounded operands."""
    names = ("q", "k", "v", *OPTIONAL)
    o, lse = torch_masked_attention(**{name: exact[name] for name in names}, **params)
    return {"o": o, "lse": lse}


def expect(inputs, params, *, dtype, compute=None):
    q, k, v, o, lse, do = (inputs[name] for name in ("q", "k", "v", "o", "lse", "do"))
    scale, compute = attention.softmax_scale(params["scale"], q.shape[-1]), lossy(compute, dtype)
    gradients = torch_masked_attention_backward(**inputs, **params)
    at = probabilities(q, k, lse, scale=scale, compute=compute, mods=mods_of(inputs, params, scale))
    return gradient_bounds(q, k, v, o, lse, do, gradients, at, factor=abs(scale), dtype=dtype, compute=compute)


def _family(make):
    def family(draw: Draw):
        do = values.normal(draw, draw.shape("do"))
        do[..., -1:, :] += 2
        return {**make(draw), "do": do}

    return family


def _in_one_segment(make):
    """A family of attention_backward's."""

    def family(draw: Draw):
        segments = {name: torch.zeros(draw.shape(name), dtype=torch.float64) for name in ("seg_q", "seg_k")}
        return {**masked_attention.changes(draw), **segments, **make(draw)}

    return family


def _low_scores(draw: Draw):
    q, k, v = attention.far_below(draw, farthest=False)
    return {"q": q, "k": k, "v": v, **masked_attention.changes(draw)}


def _gradient_scales(draw: Draw):
    """Rows of do of very different size: delta or lse of another row is far off."""
    do = draw.normal(draw.shape("do"))
    scale = torch.exp2(torch.arange(do.shape[2], dtype=torch.float64) % 9 - 4).unsqueeze(-1)
    return {**masked_attention.contract.values["normal"](draw), "do": do * scale}


def _value_offset(draw: Draw):
    """Values far from 0: dp and delta are large, their difference is not."""
    q, k, v = attention.heads(draw)
    do = draw.uniform(draw.shape("do"), 0.5, 1.5)
    return {"q": q, "k": k, "v": v + 20, "do": do, **masked_attention.changes(draw)}


def _bytes(size, param, item) -> float:
    queries, keys = size["B"] * size["Hq"] * size["Sq"], size["B"] * size["Hkv"] * size["Sk"]
    return 4 * (queries + keys) * size["D"] * item + 4 * queries


# the laws


def _with_forward(arguments, **mods):
    """The arguments of a call with other mods, o and lse those of its forward."""
    given = {**arguments, **mods}
    names = ("q", "k", "v", *OPTIONAL, "causal", "window", "softcap", "scale", "p", "seed", "offset")
    wide = {n: given[n].double().cpu() if isinstance(given[n], torch.Tensor) else given[n] for n in names}
    o, lse = torch_masked_attention(**wide)
    device = given["q"].device
    return {**given, "o": o.to(given["q"].dtype).to(device), "lse": lse.float().to(device)}


def _further_off(found, wanted, dtype) -> float:
    """How many times what two right kernels may be apart."""
    limit = [64 * torch.finfo(dtype).eps * max(1.0, t.abs().max().item()) for t in wanted]
    pairs = zip(found, wanted, limit, strict=True)
    return max((x.double().cpu() - y.double().cpu()).abs().max().item() / most for x, y, most in pairs)


def _is_attention_backward(call, arguments, outputs, case):
    plain = _with_forward(arguments, **NO_MODS, causal=True)
    exact = [plain[name].double().cpu() for name in ("q", "k", "v", "o", "lse", "do")]
    found, wanted = call(**plain), torch_attention_backward(*exact, causal=True)
    if case.dtype != "float32" and is_cut(found[2], wanted[2]):
        return "dv is cut instead of rounded to nearest"
    off = _further_off(found, wanted, case.torch_dtype)
    return (
        None if off <= 1 else f"without bias, window, segments and the rest it is another gradient: {off:.3g} times off"
    )


def _wide_window(call, arguments, outputs, case):
    plain = _with_forward(arguments, **NO_MODS, causal=False)
    wide = call(**{**plain, "window": case.size["Sq"] + case.size["Sk"]})
    off = _further_off(wide, call(**plain), case.torch_dtype)
    return None if off <= 1 else f"a window as long as the sequence hides something: {off:.3g} times off"


def _hidden_keys(call, arguments, outputs, case):
    """A key that no query with a gradient sees, for the window, gets none; such a query gets none of it."""
    plain = _with_forward(arguments, **NO_MODS, causal=True)
    given = _with_forward(plain, window=3)
    do = torch.zeros_like(given["do"])
    do[:, :, -1] = given["do"][:, :, -1]
    dq, dk, dv = call(**{**given, "do": do})
    if dq[:, :, :-1].count_nonzero():
        return "a query whose do is 0 has a dq"
    seen = _masks.within(case.size["Sq"], case.size["Sk"], causal=True, window=3)[-1]
    unseen = ~torch.from_numpy(seen).to(dk.device)
    if dk[:, :, unseen].count_nonzero() or dv[:, :, unseen].count_nonzero():
        return "a key that lies outside the window of the only query with a gradient has a gradient"
    return None


def _constant_bias(call, arguments, outputs, case):
    """A bias of 1 everywhere adds 1 to lse and changes no gradient."""
    plain = _with_forward(arguments, **NO_MODS, causal=True)
    size = case.size
    bias = torch.ones((size["B"], size["Hq"], size["Sq"], size["Sk"])).to(plain["q"])
    off = _further_off(call(**{**plain, "bias": bias, "lse": plain["lse"] + 1}), call(**plain), case.torch_dtype)
    return None if off <= 1 else f"a bias of 1 everywhere, and lse 1 more, change a gradient: {off:.3g} times off"


def _each_alone(call, arguments, outputs, case):
    """The answer with one of them at a time, as with none and with several."""
    size, rng, q = case.size, case.rng("alone"), arguments["q"]
    bias = torch.randn((size["B"], size["Hq"], size["Sq"], size["Sk"]), generator=rng).to(q)
    seg_q, seg_k = (t.to(q.device) for t in masked_attention.int_segments(case))
    for mods in (
        {"bias": bias},
        {"slopes": torch.linspace(0.6, 0.1, size["Hq"]).to(q.device)},
        {"softcap": 0.7},
        {"seg_q": seg_q, "seg_k": seg_k},
        {"window": 3},
        {"p": 0.4, "seed": 2**33 + 5, "offset": 2**33 + 3},
    ):
        given = _with_forward(arguments, **{**NO_MODS, "seed": 0, "offset": 0, "causal": False, **mods})
        exact: dict[str, Any] = {n: t.double().cpu() if isinstance(t, torch.Tensor) else t for n, t in given.items()}
        off = _further_off(call(**given), torch_masked_attention_backward(**exact), case.torch_dtype)
        if off > 1:
            return f"with {' and '.join(mods)} alone: {off:.3g} times off"
    return None


def _zero_gradient(call, arguments, outputs, case):
    dq, dk, dv = call(**{**arguments, "do": torch.zeros_like(arguments["do"])})
    left = [name for name, t in (("dq", dq), ("dk", dk), ("dv", dv)) if t.count_nonzero()]
    return f"do = 0 leaves {', '.join(left)} unlike 0" if left else None


def _all_dropped(call, arguments, outputs, case):
    dropped = _with_forward(arguments, **{**NO_MODS, "p": 1.0})
    left = [name for name, t in zip(("dq", "dk", "dv"), call(**dropped), strict=True) if t.count_nonzero()]
    return f"p = 1 leaves {', '.join(left)} unlike 0" if left else None


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


def _fewer_heads(arguments):
    return {n: t[:, :3] if n in ("q", "o", "do", "lse") else t for n, t in arguments.items()}


contract = Contract(
    gradient_of="masked_attention",
    operands={
        "q": Operand("B Hq Sq D", layouts.HEADS),
        "k": Operand("B Hkv Sk D", layouts.HEADS),
        "v": Operand("B Hkv Sk D", SOME),
        "o": Operand("B Hq Sq D", SOME[:3], derived=True),
        "lse": Operand("B Hq Sq", ("contiguous", "step"), torch.float32, derived=True),
        "do": Operand("B Hq Sq D", SOME[:3]),
        **masked_attention.OPERANDS,
    },
    outputs={"dq": Output("B Hq Sq D"), "dk": Output("B Hkv Sk D"), "dv": Output("B Hkv Sk D")},
    sizes=masked_attention.SIZES,
    regular=masked_attention.REGULAR,
    over_tiles=attention.OVER_TILES,
    beyond_grid=masked_attention.BEYOND_GRID,
    also=attention.ALSO
    | masked_attention.ALSO
    | {
        name: replace(one, values=_in_one_segment(one.values))
        for name, one in (attention_backward.SMALL_ADDENDS | attention_backward.BEYOND_LARGEST).items()
    }
    | {
        "low_scores": Also(attention.LOW_SCORES, _family(_low_scores)),
        "documents_coming_back": Also(masked_attention.SQUARE, _family(masked_attention.coming_back)),
        "bias_beyond_16_bits": replace(
            masked_attention.BIAS_BEYOND_16_BITS, values=_family(masked_attention.last_keys_favoured)
        ),
    },
    values={
        **{
            name: _family(make) for name, make in masked_attention.contract.values.items() if name != "shifted_negative"
        },
        "gradient_scales": _gradient_scales,
        "value_offset": _value_offset,
    },
    params=masked_attention.PARAMS,
    derive=_derive,
    expect=expect,
    large=masked_attention.LARGE,
    flops=lambda size, param: 2.5 * masked_attention.flops(size, param),
    calls=lambda size, param: 2 * masked_attention.contract.calls(size, param),
    bytes=_bytes,
    invalid=[
        Invalid("q is 3-D", _spoil("q", lambda q: q[0]), ValueError, r"\bq\b"),
        Invalid("k has another D", _spoil("k", lambda k: k[..., 1:]), ValueError, r"\bk\b"),
        Invalid("o has another length", _spoil("o", lambda o: o[:, :, 1:]), ValueError, r"\bo\b"),
        Invalid("lse has another length", _spoil("lse", lambda lse: lse[:, :, 1:]), ValueError, r"\blse\b"),
        Invalid("lse is float16", _spoil("lse", torch.Tensor.half), TypeError, r"\blse\b.*float16"),
        Invalid("lse is None", lambda arguments: {**arguments, "lse": None}, TypeError, r"\blse\b.*None"),
        Invalid("do has another dtype", _spoil("do", torch.Tensor.half), TypeError, r"\bdo\b"),
        Invalid("do is elsewhere", _spoil("do", lambda do: do.to("meta")), ValueError, r"\bdo\b.*meta"),
        Invalid("heads of q no multiple", _fewer_heads, ValueError, r"\bq\b.*\bheads\b"),
        *masked_attention.OF_MODS,
    ],
    properties=[
        Property(
            "attention's gradient where nothing is given", _is_attention_backward, elsewhere=with_params(causal=True)
        ),
        Property(
            "each operand and parameter alone", _each_alone, elsewhere=with_params(p=0.4, seed=2**33, offset=2**33)
        ),
        Property("a wide window is none", _wide_window),
        Property("hidden keys have no gradient", _hidden_keys, elsewhere=with_params(causal=True, window=3)),
        Property("a constant bias changes no gradient", _constant_bias, elsewhere=with_params(causal=True)),
        Property("no gradient in, none out", _zero_gradient),
        Property("nothing is left of p = 1", _all_dropped, elsewhere=with_params(p=1.0)),
    ],
)


def _sdpa(q, k, v, scale, **given):
    seen, grouped = shown({"q": q, "k": k, **given}), q.shape[1] != k.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=grouped)


bench = Bench(
    baselines=[autograd("SDPA with a mask", _sdpa, {"dq": "q", "dk": "k", "dv": "v"}, "do")],
    dtypes=("float16",),
    params={"causal": (True,), "window": (None, 1024)},
    independent_axes=(("B",), ("Hq", "Hkv")),
)
