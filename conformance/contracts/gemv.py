"""gemv(a, x): y = a·x with a (M, K), x (K,), y (M,)."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_rows import WARPS
from touchstone.conformance.contracts._laws import additive_on_integers, adjoint, doubles, integers_of
from touchstone.conformance.contracts._multilinear import (
    OF_BLOCKS,
    beyond_float16,
    multilinear,
    small_addends,
    sums_beyond_largest,
)
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Draw, Operand, Regular, beyond_largest
from touchstone.conformance.spec.layouts import VECTOR
from touchstone.reference.gemv import torch_gemv


def _on_integers(arguments, case):
    return {name: integers_of(tensor) for name, tensor in arguments.items()}


def _transposed(call, arguments, ys):
    return call(a=arguments["a"].t(), x=ys[0])


def _special_behind(draw: Draw):
    """NaN at the beginning of the last row, where the tail of the row before may be read on."""
    a = draw.normal(draw.shape("a"))
    a[-1, 0] = torch.nan
    return {"a": a, "x": draw.normal(draw.shape("x"))}


contract = multilinear(
    torch_gemv,
    operands={"a": Operand("M K"), "x": Operand("K", VECTOR)},
    output="y",
    axes="M",
    along="K",
    terms=lambda inputs, params: inputs["a"].shape[1],
    sizes=[
        {"M": m, "K": k}
        for m, k in [(5, 37), (1, 1), (0, 5), (3, 0), (7, 16), (33, 64), (67, 13), (2, 1025), (1031, 7), (1, 16411)]
    ],
    regular=Regular(
        [
            {"M": m, "K": k}
            for m, k in [(64, 64), (64, 128), (128, 64), (64, 256), (192, 64), (64, 192), (128, 128), (64, 384)]
        ]
    ),
    over_tiles={"M": 5, "K": 2081},
    beyond_grid=[{"M": 69001, "K": 3}, {"M": 1, "K": 2**17 + 5}],
    also={
        "small_addends": Also({"M": 7, "K": 33281}, small_addends("a", 1), dtype="float16"),
        "large_sums_of_blocks": Also({"M": 3, "K": OF_BLOCKS}, "cancelling", dtype="bfloat16"),
        "special_behind": Also({"M": 5, "K": 37}, _special_behind),
        "whole_tiles": Also({"M": 64, "K": 64}),  # of float32, which may be cut to TF32 there alone
        "odd_tiles": Also({"M": 64, "K": 832}, dtype="float16"),  # 13 of 64, where stages and buffers take turns
        "beyond_float16": Also({"M": 7, "K": 37}, beyond_float16, dtype="bfloat16"),
        "one_term": Also({"M": 33, "K": 1}),
        "whole_warps": Also({"M": 5, "K": WARPS}),
        **beyond_largest({"M": 7, "K": 37}, sums_beyond_largest),
    },
    large=[{"M": 16384, "K": 4096}, {"M": 4096, "K": 16384}, {"M": 32, "K": 2**20}],
    flops=lambda size, param: 2 * size["M"] * size["K"],
    properties=[doubles("a", "x"), additive_on_integers("a"), adjoint("x", back=_transposed, exact=_on_integers)],
    opinfo=("mv", lambda a, args, kwargs: {"a": a, "x": args[0]}),
)

bench = Bench(
    baselines=[
        *common.torch_baselines(lambda a, x: {"y": torch.mv(a, x)}, "cuBLAS"),
        common.on_arrays("CuPy", "cupy", lambda cupy, a, x: cupy.matmul(a, x), "y"),
    ],
    dtypes=("bfloat16", "float32"),
    independent_axes=(("M",),),
)
