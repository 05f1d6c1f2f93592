"""layer_norm(x, weight, bias): y = (x - mean)·rstd·weight + bias over the last axis of (rows, cols); bias or None."""

import torch.nn.functional as F

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts import _norms
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Contract, Draw, Int64Index, Operand, Output, Property, beyond_largest
from touchstone.reference.layer_norm import torch_layer_norm


def expect(inputs, params, *, dtype, compute=None):
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    condition = weight.abs() * bounds_rows.layer_statistics(x, params["eps"]).error
    if bias is not None:
        condition = condition + bias.abs()
    return {"y": Expected(torch_layer_norm(x, weight, bias, **params), parts=[(bounds_rows.of_a_row(x), condition)])}


def _family(make):
    def family(draw: Draw):
        x = make(draw, draw.shape("x"))
        return {"x": x, "weight": bounds_rows.signal(draw, "weight"), "bias": bounds_rows.signal(draw, "bias")}

    return family


def _valid(case) -> bool:
    if not _norms.divides(case, case.size["cols"]):
        return False
    if bounds_rows.repeats(case, "x") or bounds_rows.hides_cancellation(case, case.size["cols"]):
        return False
    at = bounds_rows.CONSTANT_AT if case.values == "constant_rows" else bounds_rows.SPECIAL_AT
    return bounds_rows.informative(case, ("constant_rows", "one_nan"), at)


contract = Contract(
    operands={
        "x": Operand("rows cols"),
        "weight": Operand("cols", layouts.VECTOR),
        "bias": Operand("cols", bounds_rows.OPTIONAL),
    },
    outputs={"y": Output("rows cols")},
    sizes=bounds_rows.SIZES,
    regular=bounds_rows.REGULAR,
    over_tiles=bounds_rows.OVER_TILES,
    beyond_grid=bounds_rows.BEYOND_GRID,
    own_statistics=_norms.of_rows(centred=True),
    also=bounds_rows.LONG_ROWS
    | bounds_rows.ONE
    | bounds_rows.large_squares(_family)
    | bounds_rows.special_one_column(_family(bounds_rows.one_nan))
    | bounds_rows.first_element_far_off(_family(bounds_rows.first_far_off))
    | beyond_largest({"rows": 3, "cols": 33}, bounds_rows.with_largest_weight(_family(bounds_rows.outlier))),
    int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"x": 0}),
    values={
        "normal": _family(bounds_rows.lifted),
        "mean_offset": _family(values.mean_offset),
        "tiny": _family(_norms.tiny),
        "ascending": _family(values.ascending),
        "row_scales": _family(values.row_scales),
        "constant_rows": _family(bounds_rows.constant_rows),
        "one_nan": _family(bounds_rows.one_nan),
    },
    params={"eps": (1e-5, 1e-3, 0.1, 0.0)},
    valid=_valid,
    expect=expect,
    large=common.ROWS,
    flops=lambda size, param: 8 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: (2 * size["rows"] + 2) * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("x", vectors=("weight", "bias"), optional=("bias",)),
    opinfo=("nn.functional.layer_norm", bounds_rows.norm_sample),
    properties=[
        Property("weight 0 gives the bias", bounds_rows.zero_weight_leaves_bias),
        Property("rows are normalised", bounds_rows.unit_weight_normalises("x", centred=True)),
        Property("rows are independent", bounds_rows.rows_are_independent("x")),
    ],
)


def _torch(x, weight, bias, eps):
    return {"y": F.layer_norm(x, x.shape[-1:], weight, bias, eps)}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch, "F.layer_norm"),
        common.liger("layer_norm", "LigerLayerNormFunction", lambda x, weight, bias, eps: (x, weight, bias, eps), "y"),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
