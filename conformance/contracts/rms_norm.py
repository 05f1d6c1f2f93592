"""rms_norm(x, weight): y = x·rstd·weight along the last axis of (rows, cols), rstd = 1/sqrt(mean x² + eps)."""

import torch
import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Int64Index, Operand, Output, Property, beyond_largest
from touchstone.reference.rms_norm import torch_rms_norm


def expect(inputs, params, *, dtype, compute=None):
    """In 16 bits x·rstd may be rounded before the weight comes in, as models do that store it: a second answer."""
    x, weight = inputs["x"], inputs["weight"]
    y = torch_rms_norm(x, weight, **params)
    parts = [(bounds_rows.of_a_row(x), y.abs())]
    expected = Expected(y, parts)
    if dtype is not torch.float32:
        rows = bounds_rows.rms_statistics(x, params["eps"])
        normalised, spread = bounds_rows.stored(rows.normalised, rows.error, x.shape[-1], dtype)
        expected.alternatives.append(Expected(normalised * weight, parts, extra=spread * weight.abs()))
    return {"y": expected}


def _family(make):
    return lambda draw: {"x": make(draw, draw.shape("x")), "weight": bounds_rows.signal(draw, "weight")}


def _valid(case) -> bool:
    if not _norms.divides(case, case.size["cols"]) or bounds_rows.repeats(case, "x"):
        return False
    return bounds_rows.informative(case, ("one_nan",))


contract = Contract(
    operands={"x": Operand("rows cols"), "weight": Operand("cols", layouts.VECTOR)},
    outputs={"y": Output("rows cols")},
    sizes=bounds_rows.SIZES,
    regular=bounds_rows.REGULAR,
    over_tiles=bounds_rows.OVER_TILES,
    beyond_grid=bounds_rows.BEYOND_GRID,
    own_statistics=_norms.of_rows(centred=False),
    also=bounds_rows.LONG_ROWS
    | bounds_rows.ONE
    | bounds_rows.large_squares(_family)
    | beyond_largest({"rows": 3, "cols": 33}, bounds_rows.with_largest_weight(_family(bounds_rows.outlier))),
    int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"x": 0}),
    values={
        "normal": _family(bounds_rows.lifted),
        "large": _family(values.large),
        "tiny": _family(_norms.tiny),
        "ascending": _family(values.ascending),
        "row_scales": _family(values.row_scales),
        "one_nan": _family(bounds_rows.one_nan),
    },
    params={"eps": (1e-6, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    large=common.ROWS,
    flops=lambda size, param: 4 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: (2 * size["rows"] + 1) * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("x", vectors=("weight",)),
    opinfo=("nn.functional.rms_norm", lambda x, args, kwargs: bounds_rows.norm_sample(x, args, kwargs, ("weight",))),
    properties=[
        Property("weight 0 gives 0", bounds_rows.zero_weight_leaves_bias),
        Property("rows are normalised", bounds_rows.unit_weight_normalises("x", centred=False)),
        Property("rows are independent", bounds_rows.rows_are_independent("x")),
    ],
)


def _torch(x, weight, eps):
    return {"y": F.rms_norm(x, x.shape[-1:], weight, eps)}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch, "F.rms_norm"),
        common.liger(
            "rms_norm", "LigerRMSNormFunction", lambda x, weight, eps: (x, weight, eps, 0.0, "llama", False), "y"
        ),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
