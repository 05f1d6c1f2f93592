"""transpose(x): y[c, r] = x[r, c] of (rows, cols), bit by bit."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._bounds_rows import invalid_calls
from touchstone.conformance.contracts._moved import BITS, families, moved, relabels
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import (
    GRID_LIMIT,
    Also,
    Int64Index,
    Operand,
    Output,
    Property,
    Regular,
    each_of_one,
)
from touchstone.reference.transpose import torch_transpose

SIZES = [(3, 33), (1, 1), (0, 5), (5, 0), (64, 32), (33, 97), (97, 97), (7, 1), (300, 257), (8209, 5), (5, 8209)]
REGULAR = [(64, 64), (128, 64), (64, 128), (256, 64), (32, 256), (128, 128), (1024, 64), (64, 1024)]
REGULAR += [(16, 512), (192, 128)]
BEYOND_GRID = [(69001, 3), (3, 69001), (32 * GRID_LIMIT + 5, 2)]  # rows, and rows in tiles of 32


def _twice_is_itself(call, arguments, outputs, case):
    bits = BITS[case.torch_dtype.itemsize]
    again = call(x=outputs[0])[0]
    same = torch.equal(again.view(bits), arguments["x"].contiguous().view(bits))
    return None if same else "the transpose of the transpose is not x, bit by bit"


def _valid(case) -> bool:
    empty = 0 in case.size.values()
    return case.values == "tags" or not empty


contract = moved(
    torch_transpose,
    operands={"x": Operand("rows cols")},
    outputs={"y": Output("cols rows")},
    sizes=[{"rows": rows, "cols": cols} for rows, cols in SIZES],
    aligned=[{"rows": 64, "cols": 32}],
    regular=Regular([{"rows": rows, "cols": cols} for rows, cols in REGULAR]),
    beyond_grid=[{"rows": rows, "cols": cols} for rows, cols in BEYOND_GRID],
    also={"many_tiles": Also({"rows": 1031, "cols": 1033}, dtype="float16"), **each_of_one({"rows": 3, "cols": 33})},
    int64_index=Int64Index({"rows": 2**14 + 8, "cols": 2**17 + 3}, rows={"x": 1}),
    values=families("x"),
    valid=_valid,
    large=common.ROWS,
    flops=lambda size, param: size["rows"] * size["cols"],  # one move each
    bytes=lambda size, param, item: 2 * size["rows"] * size["cols"] * item,
    invalid=invalid_calls("x"),
    opinfo=("t", lambda x, args, kwargs: {"x": x} if x.ndim == 2 else None),
    properties=[Property("twice is itself", _twice_is_itself, values="tags", bitwise=True), relabels("x")],
)

bench = Bench(
    baselines=[
        *common.torch_baselines(lambda x: {"y": x.t().contiguous()}),
        common.on_arrays("CuPy", "cupy", lambda cupy, x: cupy.ascontiguousarray(x.T), "y"),
    ],
    independent_axes=(("rows",), ("cols",)),
)
