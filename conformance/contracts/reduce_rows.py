"""reduce_rows(x, *, axis, function): sums, maxima or minima along an axis of x (rows, cols); NaN wins."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _extremes as extremes
from touchstone.conformance.contracts import _multilinear as multilinear
from touchstone.conformance.contracts._bounds_rows import REGULAR, powers_of_two
from touchstone.conformance.contracts._laws import additive_on_integers, doubles
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Invalid, Operand, Property, beyond_largest
from touchstone.reference.reduce import FUNCTIONS
from touchstone.reference.reduce_rows import torch_reduce_rows

_OPERANDS = {"x": Operand("rows cols")}


def _along(params):
    return "cols" if params["axis"] == -1 else "rows"


def _terms(inputs, params):
    return inputs["x"].shape[params["axis"]]


def _short_and_long(call, arguments, outputs, case):
    """A sum of nothing is 0, and one of 70,001 elements has the last of them, whatever the axis."""
    nothing = arguments["x"][:, :0]
    last = torch.zeros((1, 70001), dtype=nothing.dtype, device=nothing.device)
    last[0, -1] = 1
    for axis in (-1, 0):
        empty, one = (t if axis == -1 else t.t() for t in (nothing, last))
        if bool(call(x=empty, axis=axis, function="sum")[0].any()):
            return f"a sum of nothing along axis {axis} is not 0"
        if call(x=one, axis=axis, function="sum")[0].item() != 1:
            return f"of 70001 elements along axis {axis} the last is not in the sum"
    return None


_shows = extremes.valid(_along, multilinear.informative(_along))


def _valid(case) -> bool:
    """Rule out thousands of results of one element each, for which a kernel may start as many programs."""
    length = case.size[_along(case.param)]
    return _shows(case) and not (length == 1 and max(case.size.values()) > 4096)


contract = multilinear.multilinear(
    torch_reduce_rows,
    operands=_OPERANDS,
    output="y",
    axes=lambda case: "rows" if case.param["axis"] == -1 else "cols",
    along=_along,
    terms=_terms,
    params={"axis": (-1, 0), "function": FUNCTIONS},
    expect=extremes.expectation(torch_reduce_rows, "y", _terms),
    values=multilinear.families(_OPERANDS, _along) | extremes.FAMILIES,
    valid=_valid,
    sizes=[
        {"rows": rows, "cols": cols}
        for rows, cols in [
            (3, 33),
            (1, 1),
            (0, 5),
            (5, 0),
            (24, 24),
            (67, 17),
            (3, 1025),
            (1031, 5),
            (1, 16411),
            (4099, 1),
        ]
    ],
    regular=REGULAR,
    beyond_grid=[{"rows": 69001, "cols": 3}, {"rows": 3, "cols": 69001}],
    over_tiles={"rows": 261, "cols": 263},
    also={
        "small_addends_of_lanes": Also(
            {"rows": 3, "cols": multilinear.OF_LANES}, multilinear.small_addends_of_lanes, dtype="float16"
        ),
        "large_sums_of_blocks": Also({"rows": 3, "cols": multilinear.OF_BLOCKS}, "cancelling", dtype="bfloat16"),
        "large_sums_of_columns": Also(
            {"rows": multilinear.OF_BLOCKS, "cols": 3}, "cancelling", {"axis": 0}, dtype="bfloat16"
        ),
        "beyond_float16": Also({"rows": 3, "cols": 33}, multilinear.beyond_float16, dtype="bfloat16"),
        **beyond_largest({"rows": 3, "cols": 33}, multilinear.sums_beyond_largest),
        "columns_beyond_grid": Also({"rows": 3, "cols": 69001}, params={"axis": 0}),
        "one_column_in_steps": Also({"rows": 33, "cols": 1}, layouts={"x": "step"}),
        "one_row_more": Also({"rows": 1025, "cols": 5}, params={"axis": 0}),  # than whole tiles, of any power of two
        "special_sum": Also({"rows": 3, "cols": 33}, extremes.infinities),
        "special_maximum": Also({"rows": 3, "cols": 33}, extremes.infinities, {"function": "max"}),
        "special_minimum": Also({"rows": 3, "cols": 33}, extremes.infinities, {"function": "min", "axis": 0}),
        **{
            f"special_{function}_of_parts": Also(
                {"rows": rows, "cols": 8011 // rows}, extremes.late_nan, {"function": function, "axis": axis}
            )
            for function, rows, axis in (("max", 3, -1), ("min", 4005, 0))
        },
        "maximum_below_zero": Also({"rows": 3, "cols": 1025}, "below_zero", {"function": "max"}),
        **{
            f"{f}imum_with_negative_zero": Also({"rows": 3, "cols": 1025}, extremes.negative_zero, {"function": f})
            for f in extremes.EXTREMES
        },
        "minimum_above_zero": Also({"rows": 3, "cols": 1025}, extremes.above_zero, {"function": "min"}),
        "maximum_of_columns": Also({"rows": 1031, "cols": 5}, "below_zero", {"axis": 0, "function": "max"}),
        **powers_of_two(lambda n: {"rows": 3, "cols": n}),
        **{f"{name}_rows": one for name, one in powers_of_two(lambda n: {"rows": n, "cols": 3}, axis=0).items()},
    },
    large=common.ROWS,
    flops=lambda size, param: max(size["rows"] * size["cols"], 1),
    properties=[
        doubles("x"),
        additive_on_integers("x"),
        extremes.duality("x"),
        extremes.keeps_special_values("x"),
        extremes.order_does_not_matter("x", -1),
        Property("short and long sums", _short_and_long),
    ],
    invalid=[
        *multilinear.invalid_calls(_OPERANDS),
        Invalid("no columns", lambda a: {**a, "x": a["x"][:, :0], "function": "max"}, ValueError, r"\bx\b.*empty"),
        Invalid("function is mean", lambda a: {**a, "function": "mean"}, ValueError, r"\bfunction\b.*mean"),
        Invalid("axis is 2", lambda a: {**a, "axis": 2}, ValueError, r"\baxis\b.*2"),
    ],
)

bench = Bench(
    baselines=common.torch_baselines(
        lambda x, axis, function: {"y": torch_reduce_rows(x, axis=axis, function=function)}
    ),
    dtypes=("bfloat16", "float32"),
    params={"axis": (-1, 0), "function": ("sum",)},
    independent_axes=(("rows",), ("cols",)),
)
