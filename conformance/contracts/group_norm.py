"""group_norm(x, weight, bias): (N, C, *) normalised over the C/groups channels of each group and all positions."""

import math
from typing import Any

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import (
    Also,
    Contract,
    Draw,
    Int64Index,
    Invalid,
    Operand,
    Output,
    OwnStatistics,
    Property,
    Regular,
    beyond_largest,
    each_of_one,
)
from touchstone.reference.group_norm import torch_group_norm

SMALL = [(2, 6, (5,)), (1, 6, (1,)), (0, 6, (5,)), (2, 6, (0,)), (3, 12, ()), (2, 12, (3, 11)), (1, 6, (2, 3, 7))]
LONG = [(3, 32, (8, 8)), (1, 2, (10007,)), (2, 1056, (3,)), (130, 6, (2, 2))]
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "step", "offset", "broadcast")
REGULAR = [
    (2, 64, (8, 8)),
    (1, 128, (16, 16)),
    (2, 32, (64,)),
    (1, 256, (4, 8)),
    (4, 64, (16,)),
    (1, 32, (16, 32)),
    (3, 64, (4, 4, 4)),
    (2, 128, (32,)),
]
OVER_TILES: dict[str, Any] = {"N": 2, "C": 6, "trailing": (3, 347)}
SPECIAL_AT = ((2, 6, (5,)), (2, 12, (3, 11)), (2, 1056, (3,)), (3, 6, (1,)), tuple(OVER_TILES.values()), *REGULAR)
CONSTANT_AT = ((2, 6, (5,)), (3, 12, ()), (2, 12, (3, 11)))

# of the U-Net of a diffusion model, where it joins its two halves; 32 groups and the contract's 3 divide the channels
LARGE = [{"N": 16, "C": channels, "trailing": (side, side)} for channels, side in [(960, 64), (1920, 32)]]


def expect(inputs, params, *, dtype, compute=None):
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    groups, size = params["groups"], math.prod(x.shape[1:]) // params["groups"]
    error = bounds_rows.layer_statistics(x.reshape(x.shape[0], groups, size), params["eps"]).error.reshape(x.shape)
    channel = (-1, *[1] * (x.ndim - 2))
    condition = weight.abs().reshape(channel) * error
    if bias is not None:
        condition = condition + bias.abs().reshape(channel)
    return {"y": Expected(torch_group_norm(x, weight, bias, **params), parts=[(size, condition)])}


def _family(make):
    def family(draw: Draw):
        x = make(draw, draw.shape("x"))
        return {"x": x, "weight": bounds_rows.signal(draw, "weight"), "bias": bounds_rows.signal(draw, "bias")}

    return family


def _group_scales(draw: Draw, shape):
    """Channels and samples of very different mean and size: the statistics of a wrong group are far off."""
    channel = (shape[0], shape[1], *[1] * (len(shape) - 2))
    x = values.lift_square(draw.normal(shape))
    return x * draw.uniform(channel, 0.25, 4.0) + draw.normal(channel, 2.0)


def _valid(case) -> bool:
    if case.size["C"] % case.param["groups"]:
        return False
    terms = case.size["C"] // case.param["groups"] * math.prod(case.size["trailing"])
    if not _norms.divides(case, terms) or bounds_rows.hides_cancellation(case, terms):
        return False
    at = CONSTANT_AT if case.values == "constant_rows" else SPECIAL_AT
    return bounds_rows.informative(case, ("constant_rows", "one_nan"), at)


def _size(size) -> int:
    return size["N"] * size["C"] * math.prod(size["trailing"])


def _sample(x: torch.Tensor, args, kwargs) -> dict | None:
    """The call's arguments from an OpInfo sample."""
    given = {**dict(zip(("weight", "bias", "eps"), args[1:], strict=False)), **kwargs}
    if x.ndim < 2 or given.get("weight") is None or given.get("eps", 1e-5) <= 0:
        return None
    return {"x": x, "groups": args[0], **given}


def _of_groups(exact, params) -> tuple[torch.Tensor, torch.Tensor, int]:
    x, along = exact["x"], [1, -1, *[1] * (exact["x"].ndim - 2)]
    shift = exact["bias"]
    shift = torch.zeros(()).double() if shift is None else shift.reshape(along)
    return exact["weight"].reshape(along), shift, x.shape[0] * params["groups"]


contract = Contract(
    operands={
        "x": Operand("N C ...", LAYOUTS),
        "weight": Operand("C", layouts.VECTOR),
        "bias": Operand("C", bounds_rows.OPTIONAL),
    },
    outputs={"y": Output("N C ...")},
    sizes=[{"N": batch, "C": channels, "trailing": trailing} for batch, channels, trailing in SMALL + LONG],
    regular=Regular(
        [{"N": batch, "C": channels, "trailing": trailing} for batch, channels, trailing in REGULAR], {"groups": (32,)}
    ),
    beyond_grid=[{"N": 65601, "C": 6, "trailing": ()}],
    over_tiles=OVER_TILES,
    own_statistics=OwnStatistics("y", "group", True, _of_groups, lambda exact: exact["x"]),
    also={
        "long_groups": Also({"N": 1, "C": 6, "trailing": (33001,)}),
        "special_one_element": Also({"N": 3, "C": 6, "trailing": (1,)}, "one_nan", {"groups": 6}),
        "first_far_off": Also({"N": 2, "C": 6, "trailing": (2051,)}, _family(bounds_rows.first_far_off)),
        "first_far_off_longer": Also({"N": 1, "C": 6, "trailing": (4099,)}, _family(bounds_rows.first_far_off)),
        # as many channels as rows and columns: channels last or not, the strides are the same numbers
        "cube": Also({"N": 2, "C": 6, "trailing": (6, 6)}),
        "cube_of_channels_last": Also(
            {"N": 2, "C": 6, "trailing": (6, 6)}, layouts={"x": "channels_last"}, dtype="float16"
        ),
        "channels_of_a_group": Also({"N": 2, "C": 1542, "trailing": (3,)}, dtype="float16"),  # 514
    }
    | bounds_rows.powers_of_two(lambda n: {"N": 2, "C": 6, "trailing": (n // 2,)})  # 3 groups of 2 channels
    | each_of_one({"N": 2, "C": 6, "trailing": (5,)}, "N")
    | bounds_rows.large_squares(_family, size={"N": 2, "C": 6, "trailing": (5,)})
    | beyond_largest({"N": 2, "C": 6, "trailing": (5,)}, bounds_rows.with_largest_weight(_family(bounds_rows.outlier))),
    int64_index=Int64Index({"N": 2**17 + 3, "C": 96, "trailing": (171,)}, rows={"x": 0}),
    values={
        "normal": _family(bounds_rows.lifted),
        "mean_offset": _family(values.mean_offset),
        "tiny": _family(_norms.tiny),
        "ascending": _family(values.ascending),
        "group_scales": _family(_group_scales),
        "constant_rows": _family(bounds_rows.constant_rows),
        "one_nan": _family(bounds_rows.one_nan),
    },
    params={"groups": (3, 1, 2, 6, 32), "eps": (1e-5, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    large=LARGE,
    flops=lambda size, param: 8 * _size(size),
    bytes=lambda size, param, item: 2 * (_size(size) + size["C"]) * item,
    invalid=[
        *bounds_rows.invalid_calls("x", vectors=("weight", "bias"), optional=("bias",)),
        Invalid("C is no multiple of groups", lambda a: {**a, "groups": 4}, ValueError, r"\bgroups\b"),
        Invalid("groups is 0", lambda a: {**a, "groups": 0}, ValueError, r"\bgroups\b"),
        Invalid("groups is negative", lambda a: {**a, "groups": -3}, ValueError, r"\bgroups\b"),
    ],
    opinfo=("nn.functional.group_norm", _sample),
    properties=[
        Property("weight 0 gives the bias", bounds_rows.zero_weight_leaves_bias),
        Property("groups are normalised", bounds_rows.unit_weight_normalises("x", centred=True)),
        Property("samples are independent", bounds_rows.rows_are_independent("x")),
    ],
)


def _torch(x, weight, bias, groups, eps):
    return {"y": F.group_norm(x, groups, weight, bias, eps)}


bench = Bench(
    baselines=common.torch_baselines(_torch, "F.group_norm"), params={"groups": (32,)}, independent_axes=(("N",),)
)
