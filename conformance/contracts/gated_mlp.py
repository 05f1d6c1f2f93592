"""gated_mlp(x, w_gate, w_up, w_down, *, activation): y = (act(x·w_gate)·(x·w_up))·w_down."""

import math

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_dots import combine, kept, lossy, multiplied, repeats
from touchstone.conformance.contracts._mlp import ACTIVATIONS, LIPSCHITZ, projection, slope
from touchstone.conformance.contracts.mlp import (
    ALIGNED,
    BEYOND_GRID,
    LARGE,
    OF_MANY_HIDDEN,
    OVER_TILES,
    REGULAR,
    SATURATED,
    SIZES,
    WHOLE_TILES,
    of_one,
    one_row_of_transposed,
    saturated,
    shows,
    small_addends,
    sparse,
    spoil,
    with_nan,
)
from touchstone.conformance.spec import values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, Scalar, dot_extra
from touchstone.conformance.spec.compare import DRIFT_ELEMENTS
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
from touchstone.conformance.spec.layouts import BROADCASTS
from touchstone.reference._activations import torch_act
from touchstone.reference.gated_mlp import torch_gated_mlp


def expect(inputs, params, *, dtype, compute=None):
    x, w_gate, w_up, w_down = (inputs[name] for name in ("x", "w_gate", "w_up", "w_down"))
    activation, compute = params["activation"], lossy(compute, dtype)
    y = torch_gated_mlp(x, w_gate, w_up, w_down, activation=activation)
    gate, up = projection(x, w_gate, None, dtype, compute), projection(x, w_up, None, dtype, compute)
    passed, steep = torch_act(gate.z, activation).abs(), slope(gate.z, gate.radius, activation)
    h = passed * up.z.abs()
    inner = LIPSCHITZ[activation] * gate.condition * up.z.abs() + passed * up.condition + h
    same = gate.z.sign() * up.z if repeats(1, w_gate, w_up) else None
    rounding = (gate.rounding * steep + kept(passed, dtype)) * up.z.abs() + passed * up.rounding + kept(h, dtype)
    extra = combine(gate.extra * steep * up.z.abs() + passed * up.extra, w_down, same)
    extra = extra + dot_extra(compute, y, h.square() @ w_down.square())
    terms: Scalar = x.shape[1]
    if h.numel():
        terms = torch.maximum(multiplied(x, w_gate).max(), multiplied(x, w_up).max()) + multiplied(h, w_down)
    parts = [(terms, inner @ w_down.abs())]
    return {"y": Expected(y, parts=parts, rounding=combine(rounding, w_down, same), extra=extra, drift=0.2)}


def _plain(draw: Draw):
    """Weights that keep the size of what they are applied to; the last of each sum counts double."""
    drawn = {"x": values.lift_tail(draw.normal(draw.shape("x")))}
    for name in ("w_gate", "w_up", "w_down"):
        inner = draw.shape(name)[0]
        drawn[name] = draw.normal(draw.shape(name), 1 / math.sqrt(max(inner, 1)))
        drawn[name][-1:] *= 2
    return drawn


def _normal(draw: Draw):
    """The last row is large, so that every size and dtype meets values where exp overflows."""
    drawn = _plain(draw)
    drawn["x"][-1:] *= 80
    return {**drawn, "w_up": drawn["w_up"] * 2**-9}


def _beyond_float16(draw: Draw):
    """Hidden values that bfloat16 holds and float16 does not, though it holds each of their factors."""
    drawn = _plain(draw)
    return {**drawn, "x": drawn["x"] * 2.0**10}


def _beyond_largest(draw: Draw):
    """As mlp's."""
    drawn = {name: draw.uniform(draw.shape(name), 0.5, 1.5) for name in draw.operands}
    w_down = draw.of_largest("w_down", 0.125, 0.25)
    w_down[:, ::2] *= -1
    return {**drawn, "w_down": w_down}


def _row_scales(draw: Draw):
    """Rows of very different size, from where act is linear to where exp overflows."""
    drawn = _plain(draw)
    rows = torch.arange(drawn["x"].shape[0], dtype=torch.float64).unsqueeze(-1)
    return {**drawn, "x": drawn["x"].clamp(-2, 2) * torch.exp2(6 - 3 * (rows % 5)), "w_up": drawn["w_up"] * 2**-8}


def _positive(draw: Draw):
    """No cancellation, and so many hidden units that their roundings average out: a cut result leans one way."""
    drawn = {name: draw.uniform(draw.shape(name), 0.5, 1.5) for name in ("x", "w_gate", "w_up", "w_down")}
    for name in ("w_gate", "w_up", "w_down"):
        drawn[name] /= max(drawn[name].shape[0], 1)
    return {**drawn, "x": drawn["x"] * draw.uniform((drawn["x"].shape[0], 1), 0.5, 2.0)}


def _negative(draw: Draw):
    """Gates around -3, where gelu and its tanh form differ most; nothing cancels, so that the difference adds up."""
    drawn = _positive(draw)
    return {**drawn, "w_gate": -3 * drawn["w_gate"]}


def _cancelling(draw: Draw):
    """The second half of the hidden units is the first once more, with about minus its output weights."""
    drawn = {name: draw.uniform(draw.shape(name), 0.5, 1.5) for name in ("x", "w_gate", "w_up", "w_down")}
    inner, hidden = drawn["w_gate"].shape
    half = hidden // 2
    for tensor in (drawn["w_gate"], drawn["w_up"]):
        tensor /= inner
        tensor[:, hidden - half :] = tensor[:, :half]
    w_down = drawn["w_down"]
    w_down[hidden - half :] = -w_down[:half] * (1 + 2**-6 * draw.uniform(w_down[:half].shape))
    return drawn


def _cancelling_inner(draw: Draw):
    """As `_cancelling`, over the axis that the first two products sum."""
    drawn = _plain(draw)
    inner = drawn["w_gate"].shape[0]
    half, x = inner // 2, draw.uniform(drawn["x"].shape, 0.5, 1.5)
    x[:, inner - half :] = -x[:, :half] * (1 + 2**-6 * draw.uniform(x[:, :half].shape))
    for name in ("w_gate", "w_up"):
        drawn[name] = draw.uniform(drawn[name].shape, 0.5, 1.5)
        drawn[name][inner - half :] = drawn[name][:half]
    return {**drawn, "x": x}


def _binary(draw: Draw):
    """Small integers and relu: every intermediate is an integer that bfloat16 holds, so the answer is exact."""
    return {
        "x": values.binary(draw, draw.shape("x")),
        "w_gate": sparse(draw, draw.shape("w_gate"), 8),
        "w_up": sparse(draw, draw.shape("w_up"), 8),
        "w_down": sparse(draw, draw.shape("w_down"), 32),
    }


def _valid(case) -> bool:
    size, layout = case.size, case.layout
    if not shows(case):
        return False
    if case.values == "positive":  # for the mean signed error, which is that of distinct answers in 16 bits
        distinct = not any(name in BROADCASTS for name in layout.values())
        return case.dtype != "float32" and distinct and size["H"] > 1000 and size["M"] * size["N"] > DRIFT_ELEMENTS
    if case.values == "negative" and case.param["activation"] != "gelu":
        return False
    if case.values == "cancelling_inner" and layout["x"] == "broadcast_last":  # does not cancel: h beyond float16
        return False
    if case.values == "one_nan" and layout["x"].startswith("broadcast"):
        return False
    if case.values == "binary":  # broadcasts repeat the same weight along a sum: the integers grow beyond bfloat16's
        repeated = "broadcast" in (layout["w_gate"], layout["w_up"]) and size["D"] > 16
        return case.param["activation"] == "relu" and not repeated
    return True


def _flops(size, param) -> float:
    return 2 * size["M"] * size["H"] * (2 * size["D"] + size["N"])


def _bytes(size, param, item) -> float:
    rows, inner, hidden, outer = size["M"], size["D"], size["H"], size["N"]
    return (rows * (inner + outer) + hidden * (2 * inner + outer)) * item


def _integers(arguments) -> dict:
    """The same call on {-1, 1} from the signs, with relu: exact in any order of summation."""
    tensors = {name: 2 * (t > 0).to(t.dtype) - 1 for name, t in arguments.items() if isinstance(t, torch.Tensor)}
    tensors["x"] = (arguments["x"] > 0).to(tensors["x"].dtype)
    return {**tensors, "activation": "relu"}


def _linear_in_up(call, arguments, outputs, case):
    plain = _integers(arguments)
    doubled = call(**{**plain, "w_up": 2 * plain["w_up"]})[0]
    return None if torch.equal(doubled, 2 * call(**plain)[0]) else "doubling w_up must double y to the bit"


def _hidden_order(call, arguments, outputs, case):
    plain = _integers(arguments)
    order = torch.randperm(case.size["H"], generator=case.rng("order")).to(plain["x"].device)
    turned = {"w_gate": plain["w_gate"][:, order], "w_up": plain["w_up"][:, order], "w_down": plain["w_down"][order]}
    same = torch.equal(call(**plain)[0], call(**{**plain, **turned})[0])
    return None if same else "another order of the hidden units changes an exact answer"


contract = Contract(
    operands={"x": Operand("M D"), "w_gate": Operand("D H"), "w_up": Operand("D H"), "w_down": Operand("H N")},
    outputs={"y": Output("M N")},
    sizes=SIZES,
    aligned=ALIGNED,
    regular=REGULAR,
    over_tiles=OVER_TILES,
    beyond_grid=BEYOND_GRID,
    int64_index=Int64Index(dict(M=2**17 + 3, D=8, H=16, N=2**14 + 8), rows={"x": 0}),
    large=LARGE,
    values={
        "normal": _normal,
        "row_scales": _row_scales,
        "negative": _negative,
        "positive": _positive,
        "cancelling": _cancelling,
        "cancelling_inner": _cancelling_inner,
        "one_nan": with_nan(_normal),
        **{name: saturated(signs, up="w_up") for name, signs in SATURATED.items()},
        "binary": _binary,
    },
    params={"activation": ("silu", *(name for name in ACTIVATIONS if name != "silu"))},
    also=of_one(_positive)
    | one_row_of_transposed("w_gate", "w_up", "w_down")
    | WHOLE_TILES
    | {
        "beyond_float16": Also(SIZES[0], _beyond_float16, dtype="bfloat16"),
        "small_addends": Also(OF_MANY_HIDDEN, small_addends("w_gate", "w_down", w_up=0.25), dtype="float16"),
    }
    | beyond_largest(SIZES[0], _beyond_largest),
    valid=_valid,
    expect=expect,
    exact={"binary": ["y"]},
    flops=_flops,
    bytes=_bytes,
    invalid=[
        Invalid("x is 3-D", spoil("x", lambda x: x[None]), ValueError, r"\bx\b"),
        Invalid("w_gate has another D", spoil("w_gate", lambda w: w[1:]), ValueError, r"\bw_gate\b"),
        Invalid("w_up has another H", spoil("w_up", lambda w: w[:, 1:]), ValueError, r"\bw_up\b"),
        Invalid("w_down has another H", spoil("w_down", lambda w: w[1:]), ValueError, r"\bw_down\b"),
        Invalid("w_up has another dtype", spoil("w_up", torch.Tensor.half), TypeError, r"\bw_up\b"),
        Invalid("x is float64", spoil("x", torch.Tensor.double), TypeError, r"\bx\b.*float64"),
        Invalid("w_down is int32", spoil("w_down", torch.Tensor.int), TypeError, r"\bw_down\b.*int32"),
        Invalid("w_down is elsewhere", spoil("w_down", lambda w: w.to("meta")), ValueError, r"\bw_down\b.*meta"),
        Invalid("x is no tensor", spoil("x", torch.Tensor.tolist), TypeError, r"\bx\b.*list"),
        Invalid("w_up is None", lambda arguments: {**arguments, "w_up": None}, TypeError, r"\bw_up\b.*None"),
        Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh"),
    ],
    properties=[
        Property("linear in w_up", _linear_in_up, elsewhere=with_params(activation="relu")),
        Property("order of hidden units does not matter", _hidden_order, elsewhere=with_params(activation="relu")),
    ],
)


def _torch(x, w_gate, w_up, w_down, activation):
    return {"y": (ACTIVATIONS[activation](x @ w_gate) * (x @ w_up)) @ w_down}


bench = Bench(baselines=common.torch_baselines(_torch), independent_axes=(("M",),))
