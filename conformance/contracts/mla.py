"""mla(q_nope, q_rope, c, k_rope, w_uk, w_uv, *, causal, scale): o and lse of attention whose keys and values are
projections of one latent row a token.

A kernel may make keys and values and store them, or fold the projections into queries and output and store those: of
the two forms' roundings the bound takes the larger.
"""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import attention
from touchstone.conformance.contracts._attention import probabilities, visible_pairs
from touchstone.conformance.contracts._bounds_dots import combine, gathered, lossy
from touchstone.conformance.contracts._decode import apart, spoil
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench, eager
from touchstone.conformance.spec.budget import Expected
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
from touchstone.reference.mla import torch_mla

AXES = ("B", "H", "Sq", "Sk", "Dn", "Dr", "R", "Dv")
SIZES = [
    dict(zip(AXES, size, strict=True))
    for size in [
        (2, 3, 5, 13, 16, 8, 40, 24),
        (1, 1, 1, 1, 8, 4, 16, 8),
        (1, 2, 0, 5, 8, 4, 16, 8),
        (1, 2, 3, 0, 8, 4, 16, 8),
        (1, 2, 17, 33, 24, 10, 65, 33),
        (1, 4, 1, 128, 16, 8, 24, 20),
        (1, 2, 7, 3, 8, 6, 12, 10),
        (1, 1, 20, 4, 8, 4, 20, 9),
        (1, 1, 2, 18, 32, 64, 512, 40),
        (1, 2, 3, 1031, 8, 4, 16, 8),
    ]
]
REGULAR = Regular(
    sizes=[
        dict(zip(AXES, size, strict=True))
        for size in [
            (1, 2, 64, 64, 64, 64, 128, 64),
            (1, 1, 128, 128, 128, 64, 512, 128),
            (2, 1, 64, 64, 128, 64, 256, 128),
            (1, 1, 64, 64, 128, 64, 512, 128),
        ]
    ],
    params={"causal": (False, True)},
)
LARGE = [
    dict(zip(AXES, size, strict=True))
    for size in [
        (1, 16, 4096, 4096, 128, 64, 512, 128),
        (1, 128, 2048, 2048, 128, 64, 512, 128),
        (64, 16, 1, 4096, 128, 64, 512, 128),
        (2, 16, 8192, 8192, 128, 64, 512, 128),
    ]
]
ROWS = ("contiguous", "transposed", "sliced", "step", "offset", "broadcast")


def softmax_scale(params, q_nope, q_rope) -> float:
    """The factor of the scores."""
    return attention.softmax_scale(params["scale"], q_nope.shape[-1] + q_rope.shape[-1])


def expect(inputs, params, *, dtype, compute=None):
    """attention's answer and bound over keys and values made in float64, whose widths are padded to one; and what it
    costs to make these, or what stands for them."""
    q_nope, q_rope, c, k_rope, w_uk, w_uv = (
        inputs[name] for name in ("q_nope", "q_rope", "c", "k_rope", "w_uk", "w_uv")
    )
    causal, scale, c = params["causal"], softmax_scale(params, q_nope, q_rope), c[:, None]
    o, lse = torch_mla(**inputs, **params)
    if not o.numel() or not k_rope.shape[1]:
        return {"o": Expected(o, drift=0.2), "lse": Expected(lse, dtype=torch.float32)}
    k, v, k_sizes, v_sizes = c @ w_uk, c @ w_uv, c.abs() @ w_uk.abs(), c.abs() @ w_uv.abs()
    shared = k_rope[:, None].expand(-1, k.shape[1], -1, -1)
    q_whole, k_whole = torch.cat([q_nope, q_rope], -1), torch.cat([k, shared], -1)
    width = max(q_whole.shape[-1], v.shape[-1])
    padded = {"q": q_whole, "k": k_whole, "v": v}
    padded = {name: F.pad(x, (0, width - x.shape[-1])) for name, x in padded.items()}
    found = attention.expect(padded, {"causal": causal, "scale": scale}, dtype=dtype, compute=compute)
    of_o, of_lse = found["o"], found["lse"]
    of_o.answer, of_lse.answer = o, lse
    for kind in ("rounding", "extra"):
        value = getattr(of_o, kind)
        setattr(of_o, kind, value[..., : v.shape[-1]] if isinstance(value, torch.Tensor) and value.ndim else value)

    at = probabilities(q_whole, k_whole, lse, causal=causal, scale=scale, compute=lossy(compute, dtype))
    size = abs(scale) * (q_nope.abs() @ k_sizes.mT + q_rope.abs() @ shared.abs().mT)
    largest = at.scores.abs().amax(-1, keepdim=True)
    through = at.p * (1 + size + largest)
    terms = q_whole.shape[-1] + c.shape[-1] + c.shape[2]
    of_o.parts = [(terms, through @ v_sizes + o.abs() * through.sum(-1, keepdim=True))]
    of_lse.parts = [(terms, 1 + (at.p * size).sum(-1) + largest.squeeze(-1))]
    latent_q, latent_o = q_nope @ w_uk.mT, at.p @ c
    stored_k, stored_q = combine(q_nope.abs(), k.mT), combine(latent_q.abs(), c.mT)
    wrong = at.p * abs(scale) * torch.maximum(stored_k, stored_q)
    of_scores = combine(wrong, v) + o.abs() * gathered(wrong, -1).unsqueeze(-1)
    of_values = torch.maximum(combine(at.p, v), combine(latent_o.abs(), w_uv))
    of_o.rounding = of_o.rounding + of_scores + of_values
    of_lse.rounding = of_lse.rounding + gathered(wrong, -1)
    return found


def _normal(draw: Draw) -> dict[str, torch.Tensor | None]:
    """Normal operands, the projections so that keys and values are about 1; the last key counts."""
    return dict(_drawn(draw))


def _drawn(draw: Draw) -> dict[str, torch.Tensor]:
    drawn = {name: draw.normal(draw.shape(name)) for name in draw.operands}
    root = draw.size["R"] ** -0.5
    drawn["w_uk"], drawn["w_uv"] = drawn["w_uk"] * root, drawn["w_uv"] * root
    drawn["c"][:, -1:] *= 3
    return drawn


def _growing_keys(draw: Draw):
    """Scores rise along the keys: the running maximum changes in every tile, and where there are many keys, exp
    overflows under one that stays behind."""
    drawn = _drawn(draw)
    seq, dim = draw.size["Sk"], draw.size["Dr"]
    scale = attention.softmax_scale(draw.param["scale"], draw.size["Dn"] + dim)
    rise = (100 if seq > 64 else 12) / (0.7 * dim * scale)
    drawn["q_rope"] = drawn["q_rope"] * 0.2 + 0.7
    drawn["k_rope"] = drawn["k_rope"] + torch.linspace(rise / 16, rise, seq, dtype=torch.float64).unsqueeze(-1)
    return drawn


def _large(draw: Draw):
    """Scores of some hundreds: exp without the maximum subtracted overflows."""
    drawn = _drawn(draw)
    return drawn | {name: drawn[name] * 16 for name in ("q_nope", "q_rope")} | {"k_rope": drawn["k_rope"] * 8}


def _equal_scores(draw: Draw):
    """q = 0: every probability is the same, so that values narrower than they may be show."""
    drawn = _drawn(draw)
    return drawn | {name: drawn[name] * 0 for name in ("q_nope", "q_rope")}


def _one_latent(draw: Draw):
    """q = 0, and one latent alone is not 0, the same for all keys: nothing averages out what is rounded."""
    drawn = _drawn(draw)
    drawn |= {name: drawn[name] * 0 for name in ("q_nope", "q_rope")}
    drawn["c"] = torch.zeros_like(drawn["c"])
    drawn["c"][..., draw.size["R"] // 2] = draw.uniform((draw.size["B"], 1), 1, 2)
    return drawn


def _valid(case) -> bool:
    if 0 in case.size.values():
        return case.values == "normal"
    if case.size["Sq"] > case.size["Sk"] and not case.param["causal"]:
        return False  # these are for queries that see nothing
    return not (case.values == "growing_keys" and case.param["scale"] == 0)


def _pairs(size, param) -> float:
    """Queries and the keys that they see."""
    return size["B"] * size["H"] * visible_pairs(size["Sq"], size["Sk"], param["causal"])


def _flops(size, param) -> float:
    """Of the form that has fewer."""
    weights, pairs = size["R"] * (size["Dn"] + size["Dv"]), _pairs(size, param)
    rows = size["B"] * size["H"]
    materialised = 2 * rows * size["Sk"] * weights + 2 * pairs * (size["Dn"] + size["Dr"] + size["Dv"])
    absorbed = 2 * rows * size["Sq"] * weights + 2 * pairs * (2 * size["R"] + size["Dr"])
    return min(materialised, absorbed)


def _bytes(size, param, item) -> float:
    queries = size["B"] * size["H"] * size["Sq"]
    latents = size["B"] * size["Sk"] * (size["R"] + size["Dr"])
    weights = size["H"] * size["R"] * (size["Dn"] + size["Dv"])
    return (queries * (size["Dn"] + size["Dr"] + size["Dv"]) + latents + weights) * item + 4 * queries


def _hidden_keys(call, arguments, outputs, case):
    causal = {**arguments, "causal": True}
    before = call(**causal)
    spoiled = {name: arguments[name].clone() for name in ("c", "k_rope")}
    for tensor in spoiled.values():
        tensor[:, -1] = 2 * tensor[:, -1] + 1
    after = call(**{**causal, **spoiled})
    same = all(torch.equal(x[:, :, :-1], y[:, :, :-1]) for x, y in zip(before, after, strict=True))
    return None if same else "changing the last key changed queries that do not see it"


def _order_of_keys(call, arguments, outputs, case):
    order = torch.randperm(case.size["Sk"], generator=case.rng("order")).to(arguments["c"].device)
    moved = {name: arguments[name][:, order] for name in ("c", "k_rope")}
    return apart(outputs, call(**{**arguments, **moved}), "another order of keys")


def _rotary_parts_turn_together(call, arguments, outputs, case):
    """By a rotation that rounds nothing: other places and signs of their columns."""
    dim = case.size["Dr"]
    order = torch.randperm(dim, generator=case.rng("order")).to(arguments["c"].device)
    sign = 1 - 2 * torch.randint(2, (dim,), generator=case.rng("sign")).to(arguments["c"])
    turned = {name: arguments[name][..., order] * sign for name in ("q_rope", "k_rope")}
    return apart(outputs, call(**{**arguments, **turned}), "turning both rotary parts")


def _factors_move(call, arguments, outputs, case):
    moved = {"q_nope": arguments["q_nope"] / 2, "w_uk": arguments["w_uk"] * 2}
    return apart(outputs, call(**{**arguments, **moved}), "a factor 2 taken from the queries to w_uk")


def _small_addends(draw: Draw):
    """Latents of which the first is large and the others are small: of many keys each tile adds less than half a unit
    of what is there in 16 bits. Scores come from the rotary columns, and are about equal."""
    drawn = _drawn(draw)
    drawn["c"] = torch.full_like(drawn["c"], values.small_addend(draw.size["Sk"]))
    drawn["c"][:, :1] = values.LARGE_ADDEND
    drawn["k_rope"][:, :1] = 0
    drawn["w_uv"] = draw.uniform(draw.shape("w_uv"), 0.5, 1.5) / draw.size["R"]
    return drawn | {"q_nope": drawn["q_nope"] * 0, "q_rope": drawn["q_rope"] * 0.25}


def _low_weights(draw: Draw):
    """Scores as values.low_weights has them."""
    drawn = _drawn(draw)
    scale = attention.softmax_scale(draw.param["scale"], draw.size["Dn"] + draw.size["Dr"])
    low = values.low_weights(draw, drawn["k_rope"].shape[:-1]) / scale
    drawn["k_rope"][...] = low[..., None] / draw.size["Dr"]
    return drawn | {"q_nope": drawn["q_nope"] * 0, "q_rope": torch.ones_like(drawn["q_rope"])}


def _many_latents(draw: Draw):
    """All scores 0; of the sums over the latents, alike for all keys, the first term is large and the others are small:
    each tile of them adds less than half a unit of what is there in 16 bits."""
    drawn = {name: torch.zeros(draw.shape(name), dtype=torch.float64) for name in draw.operands}
    drawn["c"] += values.LARGE_ADDEND / 128 / draw.size["R"]
    drawn["c"][..., 0] = values.LARGE_ADDEND
    drawn["w_uv"] += draw.uniform((draw.size["H"], 1, draw.size["Dv"]), 0.5, 1.5)
    return drawn


ALSO = {
    "many_latents": Also(dict(zip(AXES, (1, 2, 3, 8, 8, 4, 512, 8), strict=True)), _many_latents, dtype="float16"),
    "many_heads": Also(dict(zip(AXES, (2, 24, 1, 33, 96, 24, 40, 160), strict=True)), dtype="float16"),
    "many_keys": Also(dict(zip(AXES, (1, 2, 2, 4161, 8, 8, 16, 8), strict=True)), _small_addends, dtype="float16"),
    "low_weights": Also(dict(zip(AXES, (1, 2, 2, 4161, 8, 8, 16, 8), strict=True)), _low_weights),
    # of float32, which may be cut to TF32 there alone
    "whole_tiles": Also(dict(zip(AXES, (1, 2, 16, 32, 16, 16, 32, 16), strict=True))),
    # three tiles of 64 latents, and 8; a whole tile of queries and not of keys
    "tail_of_latents": Also(dict(zip(AXES, (1, 2, 64, 72, 16, 8, 200, 24), strict=True))),
}
contract = Contract(
    operands={
        "q_nope": Operand("B H Sq Dn", layouts.HEADS),
        "q_rope": Operand("B H Sq Dr", layouts.HEADS),
        "c": Operand("B Sk R", ROWS),
        "k_rope": Operand("B Sk Dr", ROWS),
        "w_uk": Operand("H R Dn", ROWS),
        "w_uv": Operand("H R Dv", ROWS),
    },
    outputs={"o": Output("B H Sq Dv"), "lse": Output("B H Sq", torch.float32)},
    sizes=SIZES,
    over_tiles=dict(zip(AXES, (1, 2, 70, 90, 8, 4, 12, 8), strict=True)),
    regular=REGULAR,
    values={
        "normal": _normal,
        "growing_keys": _growing_keys,
        "large": _large,
        "equal_scores": _equal_scores,
        "one_latent": _one_latent,
    },
    params={"causal": (False, True), "scale": (None, 0.21, -0.3, 0.0)},
    valid=_valid,
    expect=expect,
    also=ALSO,
    large=LARGE,
    flops=_flops,
    calls=_pairs,
    bytes=_bytes,
    invalid=[
        Invalid("q_nope is 3-D", spoil("q_nope", lambda q: q[0]), ValueError, r"\bq_nope\b"),
        Invalid("q_rope has another length", spoil("q_rope", lambda q: q[:, :, 1:]), ValueError, r"\bq_rope\b"),
        Invalid("k_rope has heads", spoil("k_rope", lambda k: k[:, None]), ValueError, r"\bk_rope\b"),
        Invalid("k_rope has another width", spoil("k_rope", lambda k: k[..., 1:]), ValueError, r"\bk_rope\b"),
        Invalid("w_uk is of another latent", spoil("w_uk", lambda w: w[:, 1:]), ValueError, r"\bw_uk\b"),
        Invalid("w_uk is transposed", spoil("w_uk", lambda w: w.mT), ValueError, r"\bw_uk\b"),
        Invalid("w_uv has fewer heads", spoil("w_uv", lambda w: w[1:]), ValueError, r"\bw_uv\b"),
        Invalid("c has another dtype", spoil("c", torch.Tensor.half), TypeError, r"\bc\b"),
        Invalid("q_nope is float64", spoil("q_nope", torch.Tensor.double), TypeError, r"\bq_nope\b.*float64"),
        Invalid("c is None", spoil("c", lambda c: None), TypeError, r"\bc\b.*None"),
        Invalid("w_uv is elsewhere", spoil("w_uv", lambda w: w.to("meta")), ValueError, r"\bw_uv\b.*meta"),
    ],
    properties=[
        Property("hidden keys do not matter", _hidden_keys, elsewhere=with_params(causal=True)),
        Property("order of keys does not matter", _order_of_keys),
        Property("rotary parts turn together", _rotary_parts_turn_together),
        Property("factors move between queries and keys", _factors_move),
    ],
)


def _sdpa(q_nope, q_rope, c, k_rope, w_uk, w_uv, causal, scale, **_):
    k, v = c[:, None] @ w_uk, c[:, None] @ w_uv
    k = torch.cat([k, k_rope[:, None].expand(-1, k.shape[1], -1, -1)], -1)
    return {"o": attention.sdpa(torch.cat([q_nope, q_rope], -1), k, v, causal, scale)}


bench = Bench(
    baselines=[eager("materialised, F.scaled_dot_product_attention", _sdpa)],
    dtypes=("float16",),
    params={"causal": (False, True)},
    independent_axes=(("B",), ("H",)),
)
