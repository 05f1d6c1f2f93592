"""matmul(a, b): c = a·b with a (M, K), b (K, N), c (M, N)."""

from dataclasses import replace

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_dots import lossy, multiplied
from touchstone.conformance.contracts._laws import of_one_memory
from touchstone.conformance.contracts._multilinear import beyond_float16, sums_beyond_largest
from touchstone.conformance.spec import values
from touchstone.conformance.spec.baselines import Bench, eager
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
    Regular,
    beyond_largest,
)
from touchstone.reference.matmul import torch_matmul


def expect(inputs, params, *, dtype, compute=None):
    a, b = inputs["a"], inputs["b"]
    c = torch_matmul(a, b)
    extra = dot_extra(lossy(compute, dtype), c, a.square() @ b.square())
    return {"c": Expected(c, parts=[(multiplied(a, b), a.abs() @ b.abs())], extra=extra)}


def _family(make):
    return lambda draw: {"a": make(draw, draw.shape("a")), "b": make(draw, draw.shape("b"))}


def _normal(draw: Draw):
    """The last k counts more than the others: a lost tail shows in bfloat16 too."""
    a, b = values.normal(draw, draw.shape("a")), values.normal(draw, draw.shape("b"))
    b[-1:] *= 4
    return {"a": values.lift_tail(a), "b": b}


def _cancelling(draw: Draw):
    """Products are positive in the first half of k and about minus that in the second: partial sums grow like K.

    A lost or repeated tile of k is far off, and so is an accumulator of less than float32.
    """
    (rows, inner), (_, cols) = draw.shape("a"), draw.shape("b")
    a, b = draw.uniform((rows, inner), 0.5, 1.5), draw.uniform((inner, cols), 0.5, 1.5)
    half = inner // 2
    a[:, inner - half :] = -a[:, :half] * (1 + 2**-6 * draw.uniform((rows, half)))
    b[inner - half :] = b[:half]
    return {"a": a, "b": b}


def _ascending(draw: Draw):
    """Terms grow along k: the tiles are unlike one another, the last one dominates."""
    inner = draw.shape("b")[0]
    ramp = torch.exp2(torch.linspace(-4.0, 3.0, inner, dtype=torch.float64)) if inner > 1 else torch.ones(inner)
    return {"a": draw.normal(draw.shape("a")) * ramp, "b": draw.normal(draw.shape("b"))}


def _tiny(draw: Draw):
    """Answers near float16's subnormals: a product kept in a narrower type on the way loses them."""
    return {"a": draw.normal(draw.shape("a"), 2.0**-9), "b": draw.normal(draw.shape("b"), 2.0**-8)}


def _special(draw: Draw):
    """NaN and infinities: none is lost to a tile or a maximum, and 0 times infinity is NaN."""
    a, b = values.normal(draw, draw.shape("a")), values.normal(draw, draw.shape("b"))
    a[-1, -1] = a[-1, 0] = torch.nan  # at its beginning too, where the tail of the row before may be read on
    b[0, -1] = torch.inf
    a[: a.shape[0] // 2, 0] = 0
    if min(b.shape) > 1:  # a column of zeros, before an infinity
        a[:, 1], b[1, -2] = 0, torch.inf
    return {"a": a, "b": b}


def _overflowing(draw: Draw):
    """Answers on either side of the largest float16."""
    inner = draw.shape("b")[0]
    unit = (torch.finfo(torch.float16).max / inner) ** 0.5
    return {name: draw.uniform(draw.shape(name), 0.5, 1.5) * unit for name in ("a", "b")}


def _valid(case) -> bool:
    if case.values == "overflowing" and (case.dtype != "float16" or case.size["K"] > 100):
        return False  # beyond that, whether it overflows is a matter of rounding
    return case.values == "normal" or 0 not in case.size.values()


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """{0, 1} of the same shape and dtype, from the signs."""
    return (tensor > 0).to(tensor.dtype)


def _additive(call, arguments, outputs, case):
    a, b = _integers(arguments["a"]), _integers(arguments["b"])
    (part,), (rest,), (whole,) = call(a=a, b=b), call(a=1 - a, b=b), call(a=torch.ones_like(a), b=b)
    return None if torch.equal(part + rest, whole) else "a·b + (1 − a)·b differs from 1·b on integers"


def _transposable(call, arguments, outputs, case):
    a, b = _integers(arguments["a"]), _integers(arguments["b"])
    (c,), (swapped,) = call(a=a, b=b), call(a=b.t(), b=a.t())
    return None if torch.equal(c, swapped.t()) else "(bᵀ·aᵀ)ᵀ differs from a·b on integers"


def _transposed(case):
    """The case of bᵀ·aᵀ, of which neither operand is contiguous."""
    size = {**case.size, "M": case.size["N"], "N": case.size["M"]}
    return replace(case, sizes=tuple(size.items()), layouts=tuple((name, "transposed") for name in case.layout))


contract = Contract(
    operands={"a": Operand("M K"), "b": Operand("K N")},
    outputs={"c": Output("M N")},
    sizes=[
        dict(M=m, K=k, N=n)
        for m, k, n in [
            (5, 37, 7),
            (1, 1, 1),
            (0, 5, 3),
            (3, 0, 5),
            (5, 3, 0),
            (33, 64, 24),
            (48, 48, 48),
            (1, 40, 40),
            (40, 40, 1),
            (65, 31, 129),
            (270, 9, 131),
            (300, 72, 520),  # several tiles both ways, rows on 16 bytes: grouped orders, descriptors
            (7, 1025, 5),
            (3, 8209, 9),
            (1031, 8, 32),
            (2, 31, 8209),
        ]
    ],
    aligned=[dict(M=300, K=72, N=520)],
    regular=Regular(
        [
            dict(M=m, K=k, N=n)
            for m, k, n in [
                (64, 64, 64),
                (128, 64, 128),
                (64, 128, 64),
                (128, 128, 128),
                (64, 256, 64),
                (192, 64, 64),
                (64, 64, 192),
                (256, 64, 128),
            ]
        ]
    ),
    also={
        "long_sums": Also(dict(M=3, K=16451, N=5), "binary"),
        "large_partial_sums": Also(dict(M=3, K=4099, N=5), "cancelling", dtype="bfloat16"),
        "one_row": Also(dict(M=1, K=40, N=40), layouts={"b": "transposed"}),  # a product with a vector by itself
        "one_column": Also(dict(M=40, K=40, N=1), layouts={"a": "transposed"}),
        "one_row_in_steps": Also(dict(M=1, K=40, N=40), layouts={"a": "step"}),
        "one_column_in_steps": Also(dict(M=40, K=40, N=1), layouts={"b": "step"}),
        "odd_tiles": Also(dict(M=64, K=320, N=64), dtype="float16"),  # 5 of 64, where stages and buffers take turns
        # three: masks may be left out where a length is a multiple of another side's tile
        **{
            f"three_tiles_{n}": Also(dict(M=n, K=3 * n, N=3 * n), dtype=dtype)
            for n, dtype in [(32, "float32"), (64, "float16"), (128, "float32")]
        },
        "one_term": Also(dict(M=33, K=1, N=17)),
        "whole_tiles": Also(dict(M=48, K=48, N=48)),  # of float32, which may be cut to TF32 there alone
        # of 128 and of 64 rows 10 and 19, of which groups of 8 are not whole, and several columns of them
        "groups_of_tiles": Also(dict(M=1160, K=8, N=260), dtype="float16"),
        "beyond_float16": Also(dict(M=7, K=37, N=9), beyond_float16, dtype="bfloat16"),
        # of float32, where a product in parts of fewer bits makes inf - inf of an infinity
        "special_infinities": Also(dict(M=7, K=37, N=9), "special"),
        **beyond_largest(dict(M=7, K=37, N=9), sums_beyond_largest),
    },
    over_tiles=dict(M=37, K=523, N=21),
    beyond_grid=[dict(M=65601, K=3, N=2), dict(M=2, K=3, N=65601)],
    int64_index=Int64Index(dict(M=2**17 + 3, K=8, N=2**14 + 8), rows={"a": 0}),
    large=[dict(M=4096, K=4096, N=4096), dict(M=8192, K=8192, N=8192)],
    values={
        "normal": _normal,
        "binary": _family(values.binary),
        "cancelling": _cancelling,
        "ascending": _ascending,
        "row_scales": _family(values.row_scales),
        "positive": _family(values.positive),
        "tiny": _tiny,
        "special": _special,
        "overflowing": _overflowing,
    },
    valid=_valid,
    expect=expect,
    exact={"binary": ["c"]},
    flops=lambda size, param: 2 * size["M"] * size["K"] * size["N"],
    bytes=lambda size, param, item: (size["M"] * size["K"] + size["K"] * size["N"] + size["M"] * size["N"]) * item,
    invalid=[
        Invalid("a is 1-D", lambda x: {**x, "a": x["a"][0]}, ValueError, r"^a\b"),
        Invalid("b is 3-D", lambda x: {**x, "b": x["b"][None]}, ValueError, r"\bb\b"),
        Invalid("b has another K", lambda x: {**x, "b": x["b"][1:]}, ValueError, r"\bb\b"),
        Invalid("b has another dtype", lambda x: {**x, "b": x["b"].half()}, TypeError, r"\bb\b"),
        Invalid("a is float64", lambda x: {**x, "a": x["a"].double()}, TypeError, r"^a\b.*float64"),
        Invalid("b is int32", lambda x: {**x, "b": x["b"].int()}, TypeError, r"\bb\b.*int32"),
        Invalid("b is elsewhere", lambda x: {**x, "b": x["b"].to("meta")}, ValueError, r"\bb\b.*meta"),
        Invalid("a is no tensor", lambda x: {**x, "a": x["a"].tolist()}, TypeError, r"^a\b.*list"),
        Invalid("b is None", lambda x: {**x, "b": None}, TypeError, r"\bb\b.*None"),
    ],
    opinfo=("matmul", lambda a, args, kwargs: {"a": a, "b": args[0]} if a.ndim == args[0].ndim == 2 else None),
    properties=[
        Property("additive in a", _additive),
        Property("transposes", _transposable, elsewhere=_transposed),
        of_one_memory("a", "b"),
    ],
)

bench = Bench(
    baselines=[
        eager("cuBLAS", lambda a, b: {"c": torch.mm(a, b)}, devices=("cuda",)),
        *common.torch_baselines(lambda a, b: {"c": a @ b}),
        common.on_arrays("CuPy", "cupy", lambda cupy, a, b: cupy.matmul(a, b), "c"),
    ],
    dtypes=("bfloat16", "float32"),
    independent_axes=(("M",), ("N",)),
)
