"""mlp(x, w1, b1, w2, b2, *, activation): y = act(x·w1 + b1)·w2 + b2; b1 and b2 may be None."""

import math
from collections.abc import Callable

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_dots import combine, kept, lossy, multiplied, repeats
from touchstone.conformance.contracts._mlp import ACTIVATIONS, LIPSCHITZ, projection, slope
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, dot_extra
from touchstone.conformance.spec.contract import (
    Also,
    Contract,
    Draw,
    Family,
    Int64Index,
    Invalid,
    Operand,
    Output,
    Property,
    Regular,
    beyond_largest,
    each_of_one,
    with_params,
)
from touchstone.reference._activations import torch_act
from touchstone.reference.mlp import torch_mlp

BIAS = (*layouts.VECTOR, "none")
OPERANDS = {
    "x": Operand("M D"),
    "w1": Operand("D H"),
    "b1": Operand("H", BIAS),
    "w2": Operand("H N"),
    "b2": Operand("N", BIAS),
}
SIZES = [
    dict(M=m, D=d, H=h, N=n)
    for m, d, h, n in [
        (5, 37, 33, 7),
        (1, 1, 1, 1),
        (0, 5, 7, 3),
        (3, 0, 7, 5),
        (3, 5, 0, 7),
        (17, 32, 1024, 32),
        (65, 45, 257, 33),
        (3, 1025, 13, 5),
        (3, 17, 8209, 9),
        (1031, 7, 13, 5),
        (2, 33, 33, 1025),
        (130, 72, 144, 136),  # several tiles every way, rows on 16 bytes: descriptors
    ]
]
REGULAR = Regular(
    [
        dict(M=m, D=d, H=h, N=n)
        for m, d, h, n in [
            (64, 64, 64, 64),
            (64, 64, 128, 64),
            (128, 64, 64, 64),
            (64, 128, 128, 64),
            (128, 128, 128, 128),
            (64, 64, 64, 128),
            (192, 64, 64, 64),
            (64, 192, 64, 64),
            (64, 64, 256, 64),
            (128, 64, 192, 128),
        ]
    ]
)
ALIGNED = [dict(M=130, D=72, H=144, N=136)]
OVER_TILES = dict(M=70, D=20, H=140, N=34)
BEYOND_GRID = [dict(M=65601, D=2, H=3, N=2)]
LARGE = [dict(M=8192, D=4096, H=16384, N=4096)]


def expect(inputs, params, *, dtype, compute=None):
    x, w1, b1, w2, b2 = (inputs[name] for name in ("x", "w1", "b1", "w2", "b2"))
    activation, compute = params["activation"], lossy(compute, dtype)
    y = torch_mlp(x, w1, b1, w2, b2, activation=activation)
    hidden = projection(x, w1, b1, dtype, compute)
    h, steep = torch_act(hidden.z, activation), slope(hidden.z, hidden.radius, activation)
    same = h if repeats(1, w1) else None
    terms = multiplied(x, w1).max() + multiplied(h, w2) if h.numel() else x.shape[1]
    condition = (LIPSCHITZ[activation] * hidden.condition + h.abs()) @ w2.abs()
    rounding = combine(hidden.rounding * steep + kept(h, dtype), w2, same)
    if b2 is not None:
        condition, rounding = condition + b2.abs(), rounding + kept(y - b2, dtype)
    extra = combine(hidden.extra * steep, w2, same) + dot_extra(compute, y, h.square() @ w2.square())
    return {"y": Expected(y, parts=[(terms, condition)], rounding=rounding, extra=extra, drift=0.2)}


def _shrunk(draw: Draw, operand: str, scale: float = 1.0) -> torch.Tensor:
    """Normal weights (in, out) that keep the size of what they are applied to, the last input counting double."""
    inner, outer = draw.shape(operand)
    w = draw.normal((inner, outer), scale / math.sqrt(max(inner, 1)))
    w[-1:] *= 2
    return w


def normal(draw: Draw, size: float = 1.0, bias: float = 1.0):
    """Hidden values of about `size`, weights that keep it, and biases as large as what they are added to."""
    return {
        "x": values.lift_tail(draw.normal(draw.shape("x"), size)),
        "w1": _shrunk(draw, "w1"),
        "b1": draw.normal(draw.shape("b1"), bias),
        "w2": _shrunk(draw, "w2"),
        "b2": draw.normal(draw.shape("b2"), bias),
    }


def row_scales(draw: Draw):
    """Rows of very different size, from where act is linear to where exp overflows."""
    drawn = normal(draw, bias=0.1)
    rows = torch.arange(drawn["x"].shape[0], dtype=torch.float64).unsqueeze(-1)
    return {**drawn, "x": drawn["x"] * torch.exp2(7 - 3 * (rows % 5))}


def negative(draw: Draw):
    """Hidden values around -3: the tail of the activation, where gelu and its tanh form differ most.

    The answer is b2 before all, so that its rounding is seen.
    """
    drawn = normal(draw)
    return {**drawn, "b1": drawn["b1"] - 3, "b2": 10 * drawn["b2"]}


def positive(draw: Draw):
    """No cancellation anywhere."""
    inner, hidden = draw.shape("w1")
    return {
        "x": draw.uniform(draw.shape("x"), 0.5, 1.5),
        "w1": draw.uniform((inner, hidden), 0.5, 1.5) / max(inner, 1),
        "b1": draw.uniform(draw.shape("b1")),
        "w2": draw.uniform(draw.shape("w2"), 0.5, 1.5) / max(hidden, 1),
        "b2": draw.uniform(draw.shape("b2")),
    }


def cancelling_inner(draw: Draw):
    """As `cancelling`, over the axis that the first product sums; nothing else is large enough to cover an error."""
    drawn = normal(draw, bias=2.0**-5)
    drawn["x"] = draw.uniform(drawn["x"].shape, 0.5, 1.5)
    inner = drawn["w1"].shape[0]
    half, x, w1 = inner // 2, drawn["x"], draw.uniform(drawn["w1"].shape, 0.5, 1.5)
    x[:, inner - half :] = -x[:, :half] * (1 + 2**-6 * draw.uniform(x[:, :half].shape))
    w1[inner - half :] = w1[:half]
    return {**drawn, "w1": w1}


def cancelling(draw: Draw):
    """The second half of the hidden units is the first once more, with about minus its output weights.

    Partial sums over the hidden axis grow like its length: a lost or repeated tile is far off, and so is an accumulator
    of less than float32.
    """
    drawn = positive(draw)
    hidden = drawn["w1"].shape[1]
    half = hidden // 2
    for tensor in (drawn["w1"], drawn["b1"]):
        tensor[..., hidden - half :] = tensor[..., :half]
    drawn["w2"] = draw.uniform(drawn["w2"].shape, 0.5, 1.5)
    drawn["w2"][hidden - half :] = -drawn["w2"][:half] * (1 + 2**-6 * draw.uniform(drawn["w2"][:half].shape))
    return drawn


def saturated(signs: tuple[int, ...], up: str = ""):
    """A family with preactivations from ±40 to some ±2000, of the signs given: there squares and cubes of them overflow
    in float16, exp in any dtype, and an activation is 0 or its argument. `up` names the second projection of a gate."""

    def family(draw: Draw):
        drawn = normal(draw) if not up else {name: _shrunk(draw, name) for name in draw.operands if name != "x"}
        gate = up.replace("up", "gate") or "w1"
        inner, hidden = draw.shape(gate)
        rows = torch.arange(draw.shape("x")[0], dtype=torch.float64).unsqueeze(-1)
        drawn["x"] = 30 * draw.uniform(draw.shape("x"), 0.5, 1.5) * torch.exp2(-(rows % 5))
        turns = torch.tensor([signs[unit % len(signs)] for unit in range(hidden)], dtype=torch.float64)
        drawn[gate] = draw.uniform((inner, hidden), 0.5, 1.5) * (40 / max(inner, 1)) * turns
        if up:
            drawn[up] = drawn[up] * 2**-9
        return drawn

    return family


SATURATED = {"saturated": (1, -1), "all_negative": (-1,)}
OF_EACH = {  # where squares and cubes overflow on the way to each activation
    f"saturated_{name}": Also(SIZES[0], "saturated", {"activation": name}, dtype="float16") for name in ACTIVATIONS
}


def sparse(draw: Draw, shape, expected: float) -> torch.Tensor:
    """{-1, 0, 1}, about `expected` of them nonzero along the first axis."""
    density = min(0.5, expected / max(shape[0], 1))
    return (draw.integers(shape, 0, 2) * 2 - 1) * (draw.uniform(shape) < density)


def binary(draw: Draw):
    """Small integers and relu: every intermediate is an integer that bfloat16 holds, so the answer is exact."""
    return {
        "x": values.binary(draw, draw.shape("x")),
        "w1": sparse(draw, draw.shape("w1"), 8),
        "b1": draw.integers(draw.shape("b1"), -2, 3),
        "w2": sparse(draw, draw.shape("w2"), 32),
        "b2": draw.integers(draw.shape("b2"), -3, 4),
    }


def one_large_row(make):
    """A family whose last row is large, so that every size and dtype meets values where exp overflows."""

    def family(draw: Draw):
        drawn = make(draw)
        drawn["x"][-1:] *= 80
        return drawn

    return family


def with_nan(make):
    """NaN in the last row of x: an activation or a maximum that swallows it, or lets it into other rows. Also at its
    beginning, where the tail of the row before may be read on."""

    def family(draw: Draw):
        drawn = make(draw)
        drawn["x"][-1, int(draw.integers((1,), 0, drawn["x"].shape[1]))] = drawn["x"][-1, 0] = math.nan
        return drawn

    return family


def of_one(family: Callable[[Draw], dict[str, torch.Tensor | None]]) -> dict[str, Also]:
    """One along each axis, and one row with each activation: of `family`, in whose tail the activations differ. And one
    row of many hidden units, which a product with a vector splits."""
    rows = {name: Also({**SIZES[0], "M": 1}, family, {"activation": name}) for name in ACTIVATIONS}
    found = each_of_one(SIZES[0]) | {f"one_row_{name}": one for name, one in rows.items()}
    return found | {"one_row_of_many": Also(dict(M=1, D=17, H=2051, N=9))}


# of float32, which may be cut to TF32 there alone
WHOLE_TILES = {
    "whole_tiles": Also(dict(M=16, D=16, H=32, N=16)),
    # three: masks may be left out where a length is a multiple of another side's tile
    "three_tiles_32": Also(dict(M=96, D=96, H=96, N=96)),
    "three_tiles_64": Also(dict(M=192, D=192, H=192, N=192), dtype="float16"),
}


def one_row_of_transposed(*weights: str) -> dict[str, Also]:
    """One row where weights are nn.Linear's: a product with a vector may have a kernel for one layout of them alone."""
    return {"one_row_of_transposed": Also({**SIZES[0], "M": 1}, layouts=dict.fromkeys(weights, "transposed"))}


def beyond_float16(draw: Draw):
    """Hidden values that bfloat16 holds and float16 does not."""
    return normal(draw, 2.0**18, 2.0**18)


def beyond_largest_of(draw: Draw):
    """Hidden values above 0, and weights of one sign a column that are near the largest number."""
    drawn = positive(draw)
    w2 = draw.of_largest("w2", 0.125, 0.25)
    w2[:, ::2] *= -1
    return {**drawn, "w1": drawn["w1"] * 16, "w2": w2}


def small_addends(inner: str, outer: str, **others: float) -> Family:
    """Hidden units of about 8, from the weights `inner`, the `others` being what is given here or 1. Of the sum over
    them by the weights `outer` the first term is large and each other one less than half a unit of it in 16 bits,
    together 1/128 of it."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        drawn = {n: torch.full(draw.shape(n), others.get(n, 1.0), dtype=torch.float64) for n in draw.operands}
        hidden = draw.uniform(draw.shape(inner), 7.6, 8.4) / draw.size["D"]
        addends = drawn[outer] * values.small_addend(draw.size["H"]) / 8
        addends[:1] = values.LARGE_ADDEND / 8
        return {**drawn, inner: hidden, outer: addends}

    return family


OF_MANY_HIDDEN = dict(M=3, D=4, H=4099, N=5)
VALUES = {
    "normal": normal,
    "row_scales": row_scales,
    "negative": negative,
    "cancelling": cancelling,
    "cancelling_inner": cancelling_inner,
    "binary": binary,
}


def shows(case) -> bool:
    """Whether the case's family has what it is for at this size: something to cancel, and anything at all."""
    size, family = case.size, case.values
    long_enough = {"cancelling": size["H"] > 128, "cancelling_inner": size["D"] > 31, "cancelling_rows": size["M"] > 16}
    return long_enough.get(family, family == "normal" or 0 not in size.values())


def _valid(case) -> bool:
    size, layout = case.size, case.layout
    if not shows(case):
        return False
    if case.values == "one_nan" and layout["x"].startswith("broadcast"):
        return False
    if case.values == "binary":  # broadcasts repeat the same weight along a sum: the integers grow beyond bfloat16's
        repeated = (layout["w1"] == "broadcast" and size["D"] > 64) or (layout["w2"] == "broadcast" and size["H"] > 64)
        return case.param["activation"] == "relu" and not repeated
    return True


def flops(size, param) -> float:
    return 2 * size["M"] * size["H"] * (size["D"] + size["N"])


def _bytes(size, param, item) -> float:
    rows, inner, hidden, outer = size["M"], size["D"], size["H"], size["N"]
    return (rows * (inner + outer) + hidden * (inner + outer + 1) + outer) * item


def _integers(arguments) -> dict:
    """The same call on {0, 1} from the signs, with relu: exact in any order of summation."""
    tensors = {name: (t > 0).to(t.dtype) for name, t in arguments.items() if isinstance(t, torch.Tensor)}
    tensors["w2"] = 2 * tensors["w2"] - 1
    return {**tensors, "activation": "relu"}


def _hidden_order(call, arguments, outputs, case):
    plain = _integers(arguments)
    order = torch.randperm(case.size["H"], generator=case.rng("order")).to(plain["w1"].device)
    turned = {"w1": plain["w1"][:, order], "b1": plain["b1"][order], "w2": plain["w2"][order]}
    same = torch.equal(call(**plain)[0], call(**{**plain, **turned})[0])
    return None if same else "another order of the hidden units changes an exact answer"


def _rows_are_independent(call, arguments, outputs, case):
    plain = _integers(arguments)
    other = plain["x"].clone()
    other[0] = 1 - other[0]
    same = torch.equal(call(**plain)[0][1:], call(**{**plain, "x": other})[0][1:])
    return None if same else "changing row 0 of x changes other rows of y"


def spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


INVALID = [
    Invalid("x is 1-D", spoil("x", lambda x: x[0]), ValueError, r"\bx\b"),
    Invalid("w1 has another D", spoil("w1", lambda w: w[1:]), ValueError, r"\bw1\b"),
    Invalid("b1 has another H", spoil("b1", lambda b: b[1:]), ValueError, r"\bb1\b"),
    Invalid("b1 is 2-D", spoil("b1", lambda b: b[None]), ValueError, r"\bb1\b"),
    Invalid("w2 has another H", spoil("w2", lambda w: w[1:]), ValueError, r"\bw2\b"),
    Invalid("b2 has another N", spoil("b2", lambda b: b[1:]), ValueError, r"\bb2\b"),
    Invalid("w2 has another dtype", spoil("w2", torch.Tensor.half), TypeError, r"\bw2\b"),
    Invalid("b2 has another dtype", spoil("b2", torch.Tensor.half), TypeError, r"\bb2\b"),
    Invalid("x is float64", spoil("x", torch.Tensor.double), TypeError, r"\bx\b.*float64"),
    Invalid("w1 is int32", spoil("w1", torch.Tensor.int), TypeError, r"\bw1\b.*int32"),
    Invalid("w2 is elsewhere", spoil("w2", lambda w: w.to("meta")), ValueError, r"\bw2\b.*meta"),
    Invalid("x is no tensor", spoil("x", torch.Tensor.tolist), TypeError, r"\bx\b.*list"),
    Invalid("w1 is None", lambda arguments: {**arguments, "w1": None}, TypeError, r"\bw1\b.*None"),
    Invalid("unknown activation", lambda a: {**a, "activation": "tanh"}, ValueError, r"\bactivation\b.*tanh"),
]

contract = Contract(
    operands=OPERANDS,
    outputs={"y": Output("M N")},
    sizes=SIZES,
    aligned=ALIGNED,
    regular=REGULAR,
    over_tiles=OVER_TILES,
    beyond_grid=BEYOND_GRID,
    int64_index=Int64Index(dict(M=2**17 + 3, D=8, H=16, N=2**14 + 8), rows={"x": 0}),
    large=LARGE,
    values={
        **VALUES,
        "normal": one_large_row(normal),
        "negative": one_large_row(negative),
        "one_nan": with_nan(normal),
        **{name: saturated(signs) for name, signs in SATURATED.items()},
    },
    params={"activation": tuple(ACTIVATIONS)},
    also=OF_EACH
    | of_one(negative)
    | one_row_of_transposed("w1", "w2")
    | WHOLE_TILES
    | {
        "beyond_float16": Also(SIZES[0], beyond_float16, dtype="bfloat16"),
        "small_addends": Also(OF_MANY_HIDDEN, small_addends("w1", "w2", b1=0.0, b2=0.0), dtype="float16"),
    }
    | beyond_largest(SIZES[0], beyond_largest_of),
    valid=_valid,
    expect=expect,
    exact={"binary": ["y"]},
    flops=flops,
    bytes=_bytes,
    invalid=INVALID,
    properties=[
        Property("order of hidden units does not matter", _hidden_order, elsewhere=with_params(activation="relu")),
        Property("rows are independent", _rows_are_independent, elsewhere=with_params(activation="relu")),
    ],
)


def _torch(x, w1, b1, w2, b2, activation):
    hidden = ACTIVATIONS[activation](torch.addmm(b1, x, w1))
    return {"y": torch.addmm(b2, hidden, w2)}


bench = Bench(baselines=common.torch_baselines(_torch), independent_axes=(("M",),))
