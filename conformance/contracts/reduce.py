"""reduce(x, *, function): y = Σ x, max x or min x, with x (n,), y (); NaN wins, the sum of nothing is 0."""

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _extremes as extremes
from touchstone.conformance.contracts import _multilinear as multilinear
from touchstone.conformance.contracts._bounds_rows import WARPS
from touchstone.conformance.contracts._laws import additive_on_integers, doubles
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Invalid, Operand, Regular, beyond_largest
from touchstone.conformance.spec.layouts import VECTOR
from touchstone.reference.reduce import FUNCTIONS, torch_reduce

_OPERANDS = {"x": Operand("n", VECTOR)}

contract = multilinear.multilinear(
    torch_reduce,
    operands=_OPERANDS,
    output="y",
    axes="",
    along="n",
    terms=lambda inputs, params: inputs["x"].numel(),
    params={"function": FUNCTIONS},
    expect=extremes.expectation(torch_reduce, "y", lambda inputs, params: inputs["x"].numel()),
    values=multilinear.families(_OPERANDS, "n") | extremes.FAMILIES,
    valid=extremes.valid("n", multilinear.informative("n")),
    sizes=[{"n": n} for n in (97, 1, 0, 31, 256, 1025, 70001)],
    over_tiles={"n": 4099},
    regular=Regular([{"n": n} for n in (256, 512, 384, 1024, 2048, 640, 4096, 8192)], {"function": FUNCTIONS[:1]}),
    also={
        "small_addends_of_lanes": Also(
            {"n": multilinear.OF_LANES}, multilinear.small_addends_of_lanes, dtype="float16"
        ),
        "large_partial_sums": Also({"n": 1025}, "cancelling", dtype="bfloat16"),
        "large_sums_of_blocks": Also({"n": multilinear.OF_BLOCKS}, "cancelling", dtype="bfloat16"),
        "many_blocks": Also({"n": 2_100_003}, multilinear.sparse),
        "whole_warps": Also({"n": WARPS}),
        "beyond_float16": Also({"n": 97}, multilinear.beyond_float16, dtype="bfloat16"),
        **beyond_largest({"n": 97}, multilinear.sums_beyond_largest),
        **multilinear.each_just_below({"n": 97}),
        "special_maximum": Also({"n": 97}, extremes.infinities, {"function": "max"}),
        **{f"special_{f}_of_parts": Also({"n": 20011}, extremes.late_nan, {"function": f}) for f in ("max", "min")},
        "maximum_below_zero": Also({"n": 1025}, "below_zero", {"function": "max"}),
        "maximum_of_many_blocks": Also({"n": 2**20 + 5}, "below_zero", {"function": "max"}),
        **{
            f"{f}imum_with_negative_zero": Also({"n": 1025}, extremes.negative_zero, {"function": f})
            for f in extremes.EXTREMES
        },
        "minimum_above_zero": Also({"n": 1025}, extremes.above_zero, {"function": "min"}),
    },
    large=[{"n": 2**25}, {"n": 2**28}],
    flops=lambda size, param: max(size["n"], 1),
    properties=[
        doubles("x"),
        additive_on_integers("x"),
        extremes.duality("x"),
        extremes.keeps_special_values("x"),
        extremes.order_does_not_matter("x", 0),
    ],
    invalid=[
        *multilinear.invalid_calls(_OPERANDS),
        Invalid("x is empty", lambda a: {**a, "x": a["x"][:0], "function": "max"}, ValueError, r"\bx\b.*empty"),
        Invalid("function is mean", lambda a: {**a, "function": "mean"}, ValueError, r"\bfunction\b.*mean"),
    ],
)

bench = Bench(
    baselines=[
        *common.torch_baselines(lambda x, function: {"y": torch_reduce(x, function=function)}),
        common.on_arrays("CuPy (CUB)", "cupy", lambda cupy, x, function: getattr(cupy, function)(x), "y"),
    ],
    dtypes=("float32", "bfloat16"),
    params={"function": ("sum", "max")},
)
