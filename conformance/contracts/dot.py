"""dot(a, b): y = Σ a·b with a and b (n,), y (); the sum of no products is 0."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_rows import WARPS
from touchstone.conformance.contracts._multilinear import (
    OF_BLOCKS,
    OF_LANES,
    beyond_float16,
    each_just_below,
    informative,
    multilinear,
    small_addends_of_lanes,
    sparse,
    sums_beyond_largest,
)
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Operand, Regular, beyond_largest
from touchstone.conformance.spec.layouts import VECTOR
from touchstone.reference.dot import torch_dot

_informative = informative("n")


def _valid(case) -> bool:
    """Sums of float16 are exact on integers up to 2048."""
    return _informative(case) and (case.values != "binary" or case.size["n"] <= 2048)


contract = multilinear(
    torch_dot,
    operands={"a": Operand("n", VECTOR), "b": Operand("n", VECTOR)},
    output="y",
    axes="",
    along="n",
    terms=lambda inputs, params: inputs["a"].numel(),
    valid=_valid,
    sizes=[{"n": n} for n in (97, 1, 0, 31, 256, 1025, 70001)],
    over_tiles={"n": 4099},
    regular=Regular([{"n": n} for n in (64, 128, 256, 512, 1024, 2048, 384, 4096)]),
    also={
        "small_addends_of_lanes": Also({"n": OF_LANES}, small_addends_of_lanes, dtype="float16"),
        "large_sums_of_blocks": Also({"n": OF_BLOCKS}, "cancelling", dtype="bfloat16"),
        "many_blocks": Also({"n": 2_100_003}, sparse),
        "whole_warps": Also({"n": WARPS}),
        "beyond_float16": Also({"n": 97}, beyond_float16, dtype="bfloat16"),
        **beyond_largest({"n": 97}, sums_beyond_largest),
        **each_just_below({"n": 97}),
    },
    large=[{"n": 2**24}, {"n": 2**27}],
    flops=lambda size, param: 2 * size["n"],
    opinfo=("dot", lambda a, args, kwargs: {"a": a, "b": args[0]}),
)

bench = Bench(
    baselines=[
        *common.torch_baselines(lambda a, b: {"y": torch.dot(a, b)}),
        common.on_arrays("CuPy", "cupy", lambda cupy, a, b: cupy.dot(a, b), "y"),
    ],
    dtypes=("float32", "float16"),
)
