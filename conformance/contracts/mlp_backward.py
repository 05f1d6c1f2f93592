"""mlp_backward(x, w1, b1, w2, b2, dy, *, activation): dx, dw1, db1, dw2, db2; a bias of None has the gradient None."""

from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.contracts import mlp
from touchstone.conformance.contracts._bounds_dots import combine, gathered, kept, lossy, multiplied, repeats, summed
from touchstone.conformance.contracts._mlp import ACTIVATIONS, CURVATURE, LIPSCHITZ, projection, slope
from touchstone.conformance.spec import values
from touchstone.conformance.spec.baselines import Bench, autograd
from touchstone.conformance.spec.budget import Expected, dot_extra
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
from touchstone.reference._activations import torch_act, torch_act_grad
from touchstone.reference.mlp_backward import torch_mlp_backward


def expect(inputs, params, *, dtype, compute=None):
    x, w1, b1, w2, b2, dy = (inputs[name] for name in ("x", "w1", "b1", "w2", "b2", "dy"))
    activation, compute = params["activation"], lossy(compute, dtype)
    dx, dw1, db1, dw2, db2 = torch_mlp_backward(x, w1, b1, w2, b2, dy, activation=activation)
    inner, outer = x.shape[1], w2.shape[1]
    at = projection(x, w1, b1, dtype, compute)
    h, lipschitz, bend = torch_act(at.z, activation), LIPSCHITZ[activation], CURVATURE[activation]
    steep = slope(at.z, at.radius, activation)
    dh = dy @ w2.mT
    dh_extra = dot_extra(compute, dh, dy.square() @ w2.square().mT)
    dz = dh * torch_act_grad(at.z, activation)
    # where z is as close to 0 as it is uncertain, relu' may be 0 or 1: all of dh, with room for its own error
    jump = (
        1.25 * dh.abs() * ((at.z.abs() <= at.radius) & (at.condition > 0))
        if activation == "relu"
        else torch.zeros_like(dh)
    )

    h_error = lipschitz * at.condition + h.abs()
    dz_error = (dy.abs() @ w2.abs().mT) * steep + dh.abs() * (bend * at.condition + lipschitz)
    h_rounding = at.rounding * steep + kept(h, dtype)
    dz_rounding = dh.abs() * (bend * at.rounding).clamp_max(2 * lipschitz) + kept(dh, dtype) * steep + kept(dz, dtype)
    dz_extra = dh_extra * steep + dh.abs() * (bend * at.extra)

    # terms of z and dh, as far as there are any
    inside = (multiplied(x, w1).max() + multiplied(dy, w2.mT).max()).item() if dz.numel() else inner + outer
    over_hidden, over_rows = repeats(1, w1) or repeats(0, w2), repeats(0, x, dy)

    def product(answer, left, error, rounding, right, extra, repeated, jump=None):
        """The budget of left·right where the left operand is off by `error`, `rounding`, `extra` and `jump`."""
        same = left if repeated else None
        extra = combine(extra, right, same) + dot_extra(compute, answer, left.square() @ right.square())
        extra = extra if jump is None else extra + jump @ right.abs()
        condition = combine(error, right, same) + left.abs() @ right.abs()
        terms = inside + multiplied(left, right)
        return Expected(answer, [(terms, condition)], combine(rounding, right, same), extra, drift=0.2)

    expected: dict[str, Expected | None] = {
        "dx": product(dx, dz, dz_error, dz_rounding, w1.mT, dz_extra, over_hidden, jump),
        "dw1": _swapped(product(dw1.mT, dz.mT, dz_error.mT, dz_rounding.mT, x, dz_extra.mT, over_rows, jump.mT)),
        "db1": None,
        "dw2": product(dw2, h.mT, h_error.mT, h_rounding.mT, dy, (at.extra * steep).mT, over_rows),
        "db2": None,
    }
    if db1 is not None:
        same = dz if over_rows else None
        parts = [(inside + summed(dz, 0), gathered(dz_error, 0, same) + dz.abs().sum(0))]
        extra = gathered(dz_extra, 0, same) + jump.sum(0)
        expected["db1"] = Expected(db1, parts, gathered(dz_rounding, 0, same), extra, drift=0.2)
    if db2 is not None:
        expected["db2"] = Expected(db2, [(summed(dy, 0), dy.abs().sum(0))], drift=0.2)
    return expected


def _swapped(expected: Expected) -> Expected:
    """The same output transposed, every tensor of its budget with it."""
    parts = [(torch.as_tensor(terms).mT, torch.as_tensor(condition).mT) for terms, condition in expected.parts]
    rounding, extra = torch.as_tensor(expected.rounding).mT, torch.as_tensor(expected.extra).mT
    return Expected(expected.answer.mT, parts, rounding, extra, drift=expected.drift)


def _family(make):
    def family(draw: Draw):
        dy, drawn = draw.normal(draw.shape("dy")), make(draw)
        dy[-1:] *= 3
        return {**drawn, "dy": dy}

    return family


def _dead_units(make):
    """A family with a row of x and some biases 0, not the first: there z is 0 and nothing else, and so is relu'."""

    def family(draw: Draw):
        drawn = _family(make)(draw)
        rows = drawn["x"].shape[0]
        if rows > 2:
            drawn["x"][rows // 2] = 0
        drawn["b1"][1::3] = 0
        return drawn

    return family


def _positive(draw: Draw):
    """No cancellation anywhere: sums over rows grow like their number."""
    return {**mlp.positive(draw), "dy": draw.uniform(draw.shape("dy"), 0.5, 1.5)}


def _cancelling_rows(draw: Draw):
    """The second half of the rows is the first once more, with about minus its dy: so for all sums over rows."""
    drawn = _positive(draw)
    half = drawn["x"].shape[0] // 2
    last = drawn["x"].shape[0] - half
    drawn["x"][last:] = drawn["x"][:half]
    drawn["dy"][last:] = -drawn["dy"][:half] * (1 + 2**-6 * draw.uniform(drawn["dy"][:half].shape))
    return drawn


def _small_addends(draw: Draw):
    """Of all sums over rows the first term is large and each other one less than half a unit of it in 16 bits, together
    1/128 of it."""
    drawn = {name: torch.ones(draw.shape(name), dtype=torch.float64) for name in draw.operands}
    drawn["w1"] = draw.uniform(draw.shape("w1"), 0.1, 0.3)
    drawn["w2"] = draw.uniform(draw.shape("w2"), 0.5, 1.5)
    drawn["dy"] *= values.small_addend(draw.size["M"])
    drawn["dy"][:1] = values.LARGE_ADDEND
    return drawn


def _small_addends_of_hidden(draw: Draw):
    """The same of dx, which sums over hidden units. They are about 8: an activation's slope there is 1."""
    drawn = {name: torch.ones(draw.shape(name), dtype=torch.float64) for name in draw.operands}
    drawn["x"] *= 2.0**-12
    drawn["b1"] = draw.uniform(draw.shape("b1"), 7.0, 9.0)
    drawn["w2"] /= draw.size["N"]
    drawn["w1"] *= values.small_addend(draw.size["H"])
    drawn["w1"][:, :1] = values.LARGE_ADDEND
    return drawn


def _beyond_largest(draw: Draw):
    """Everything above 0: the gradients of hidden values are below the largest number, and sums of them, or of dy, over
    rows and over hidden values are above it."""
    drawn = {name: draw.uniform(draw.shape(name), 1.0, 2.0) for name in draw.operands}
    drawn["w1"] /= 2
    drawn["w2"] /= 16
    return {**drawn, "dy": draw.of_largest("dy", 0.125, 0.25)}


def _binary(draw: Draw):
    """Small integers and relu: every intermediate is an integer that bfloat16 holds, so all gradients are exact."""
    return {**mlp.binary(draw), "dy": mlp.sparse(draw, draw.shape("dy"), 64)}


def _valid(case) -> bool:
    size, layout = case.size, case.layout
    if not mlp.shows(case):
        return False
    if case.values == "binary":  # broadcasts repeat the same value along a sum: the integers grow beyond bfloat16's
        repeated = (layout["w1"] == "broadcast" and size["D"] > 64) or (
            layout["w2"] == layout["dy"] == "broadcast_last" and size["N"] > 64
        )
        return case.param["activation"] == "relu" and not repeated
    return True


def _bytes(size, param, item) -> float:
    rows, inner, hidden, outer = size["M"], size["D"], size["H"], size["N"]
    return (rows * (2 * inner + outer) + 2 * hidden * (inner + outer + 1) + outer) * item


def _zero_gradient(call, arguments, outputs, case):
    gradients = call(**{**arguments, "dy": torch.zeros_like(arguments["dy"])})
    wrong = [name for name, g in zip(contract.outputs, gradients, strict=True) if g is not None and g.count_nonzero()]
    return f"dy = 0 leaves {', '.join(wrong)} unlike 0" if wrong else None


def _hidden_order(call, arguments, outputs, case):
    plain: dict[str, Any] = {name: (t > 0).to(t.dtype) for name, t in arguments.items() if isinstance(t, torch.Tensor)}
    plain = {**plain, "w2": 2 * plain["w2"] - 1, "activation": "relu"}
    order = torch.randperm(case.size["H"], generator=case.rng("order")).to(plain["x"].device)
    turned = {"w1": plain["w1"][:, order], "b1": plain["b1"][order], "w2": plain["w2"][order]}
    dx, dw1, db1, dw2, db2 = call(**plain)
    wanted = (dx, dw1[:, order], db1[order], dw2[order], db2)
    wrong = [
        name
        for name, got, want in zip(contract.outputs, call(**{**plain, **turned}), wanted, strict=True)
        if not torch.equal(got, want)
    ]
    return f"another order of the hidden units changes exact answers: {', '.join(wrong)}" if wrong else None


contract = Contract(
    gradient_of="mlp",
    operands={**mlp.OPERANDS, "b2": replace(mlp.OPERANDS["b2"], counts=False), "dy": Operand("M N")},
    outputs={"dx": Output("M D"), "dw1": Output("D H"), "db1": Output("H"), "dw2": Output("H N"), "db2": Output("N")},
    sizes=mlp.SIZES,
    aligned=mlp.ALIGNED,
    regular=mlp.REGULAR,
    over_tiles=mlp.OVER_TILES,
    beyond_grid=mlp.BEYOND_GRID,
    also=mlp.OF_EACH
    | mlp.of_one(_family(mlp.negative))
    | mlp.one_row_of_transposed("w1", "w2")
    | mlp.WHOLE_TILES
    | {"beyond_float16": Also(mlp.SIZES[0], _family(mlp.beyond_float16), dtype="bfloat16")}
    | {"one_row_more": Also(dict(M=1025, D=5, H=7, N=3))}  # than whole tiles, of any power of two
    | {
        "small_addends": Also(dict(M=1041, D=4, H=3, N=5), _small_addends, dtype="float16"),
        "small_addends_of_hidden": Also(dict(M=3, D=5, H=4099, N=2), _small_addends_of_hidden, dtype="float16"),
    }
    | beyond_largest(dict(M=33, D=5, H=33, N=7), _beyond_largest),
    int64_index=Int64Index(dict(M=2**17 + 3, D=2**14 + 8, H=8, N=8), rows={"x": 0, "dy": 0}),
    large=mlp.LARGE,
    values={
        "normal": _dead_units(mlp.normal),
        "row_scales": _dead_units(mlp.row_scales),
        "negative": _family(mlp.one_large_row(mlp.negative)),
        "cancelling": _family(mlp.cancelling),
        "cancelling_inner": _family(mlp.cancelling_inner),
        "cancelling_rows": _cancelling_rows,
        "binary": _binary,
        **{name: _family(mlp.saturated(signs)) for name, signs in mlp.SATURATED.items()},
    },
    params={"activation": tuple(ACTIVATIONS)},
    valid=_valid,
    expect=expect,
    exact={"binary": ["dx", "dw1", "db1", "dw2", "db2"]},
    flops=lambda size, param: 2.5 * mlp.flops(size, param),
    bytes=_bytes,
    invalid=[
        *mlp.INVALID,
        Invalid("dy has another M", mlp.spoil("dy", lambda dy: dy[1:]), ValueError, r"\bdy\b"),
        Invalid("dy has another N", mlp.spoil("dy", lambda dy: dy[:, 1:]), ValueError, r"\bdy\b"),
        Invalid("dy has another dtype", mlp.spoil("dy", torch.Tensor.half), TypeError, r"\bdy\b"),
        Invalid("dy is None", lambda arguments: {**arguments, "dy": None}, TypeError, r"\bdy\b.*None"),
    ],
    properties=[
        Property("no gradient in, none out", _zero_gradient),
        Property("order of hidden units does not matter", _hidden_order, elsewhere=with_params(activation="relu")),
    ],
)


def _forward(x, w1, b1, w2, b2, activation, **_):
    return torch.addmm(b2, ACTIVATIONS[activation](torch.addmm(b1, x, w1)), w2)


GRADIENTS = {"dx": "x", "dw1": "w1", "db1": "b1", "dw2": "w2", "db2": "b2"}
bench = Bench(
    baselines=[
        autograd("torch eager", _forward, GRADIENTS),
        autograd("torch.compile", _forward, GRADIENTS, compile=True),
    ]
)
