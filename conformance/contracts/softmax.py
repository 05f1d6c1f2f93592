"""softmax(x): y = exp(x - max x) / sum exp(x - max x) along the last axis of (rows, cols)."""

import math

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.contracts._bounds_dots import most, summed
from touchstone.conformance.spec import values
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import Also, Contract, Draw, Int64Index, Operand, Output, Property
from touchstone.reference.softmax import torch_softmax

SIZES = [
    (3, 33),
    (1, 1),
    (0, 5),
    (5, 0),
    (24, 24),
    (1, 129),
    (7, 1),
    (17, 64),
    (7, 127),
    (4, 257),
    (3, 1024),
    (5, 1025),
    (2, 10007),
    (1031, 7),
]
UNDERFLOW = 2.0**-24  # the smallest float16: what a probability may lose by underflow
BEYOND_GRID = ({"rows": 65601, "cols": 3},)
SPECIAL = ("row_of_neg_inf", "one_pos_inf", "one_nan", "nan_and_neg_inf")


def expect(inputs, params, *, dtype, compute=None):
    x = inputs["x"]
    y = torch_softmax(x)
    weight, size = finite(y), finite(x).abs()
    largest = size.amax(-1, keepdim=True) if x.shape[-1] else size
    through_exp = (2 + size + largest + (weight * size).sum(-1, keepdim=True)).clamp_max(most(1))
    terms = summed(weight, -1).unsqueeze(-1)
    return {"y": Expected(y, parts=[(terms, weight), (1, weight * through_exp)])}


def _family(make):
    return lambda draw: {"x": values.lift_tail(make(draw, draw.shape("x")))}


def _row_offsets(draw: Draw, shape):
    """Rows far apart: the maximum of another row over- or underflows, padding with 0 wins a negative row's. The first
    row lies where exp is 0 in float32, so that a case of a single row has that.
    """
    offset = torch.tensor([-150.0, 150.0, -30.0, -3e4], dtype=torch.float64)[torch.arange(shape[0]) % 4]
    return draw.normal(shape) + offset[:, None]


def _steep(draw: Draw, shape):
    """Rising by 400 along the row, over 100 in a tile of 32: exp overflows under the maximum of any earlier tile."""
    return draw.normal(shape) + torch.linspace(-200.0, 200.0, shape[1], dtype=torch.float64)


def _far_below(draw: Draw, shape):
    """All below -5e4, and but for float16 in every second row below -1e30: a finite number in place of -inf, where a
    running maximum starts or for padding, is larger. One logit of a row has all the weight."""
    x = torch.full(tuple(shape), -6.4e4, dtype=torch.float64)
    rows = torch.arange(shape[0])
    x[rows, (7 * rows + shape[1] // 2) % max(shape[1], 1)] = -5.5e4
    if draw.dtype is not torch.float16:
        x[1::2] *= 2.0**86
    return x


def _nan_and_neg_inf(draw: Draw):
    """A NaN among -inf alone in the last row, and among other logits too in the one before: a maximum that skips NaN
    finds nothing. In the first of more rows, beside +inf: a maximum that skips NaN finds that."""
    x = draw.normal(draw.shape("x"))
    cols = x.shape[1]
    x[-1] = -math.inf
    x[-2:, : cols // 2] = -math.inf
    x[-2:, int(draw.integers((1,), 0, cols))] = math.nan
    if len(x) > 2 and cols > 1:
        x[0, :2] = torch.tensor([math.nan, math.inf])
    return {"x": x}


def _special_row(value: float, everywhere: bool):
    def family(draw: Draw):
        x = draw.normal(draw.shape("x"))
        column = slice(None) if everywhere else int(draw.integers((1,), 0, x.shape[1]))
        x[-1, column] = value
        return {"x": x}

    return family


def _special_column(draw: Draw):
    """Rows of one logit: the softmax of none of those that are not finite is 1."""
    x = draw.normal(draw.shape("x"))
    x[:3] = torch.tensor([[math.inf], [-math.inf], [math.nan]], dtype=torch.float64)
    return {"x": x}


def _equal(draw: Draw):
    """All logits 0: over 2^k columns every answer is exactly 2^-k, whatever the form of the exponential."""
    return {"x": torch.zeros(draw.shape("x"), dtype=torch.float64)}


def _valid(case) -> bool:
    cols = case.size["cols"]
    if case.values == "equal" and (cols == 0 or cols & (cols - 1)):
        return False  # not exact
    if case.values == "equal" and cols == 1 and case.dtype != "float32":
        return False  # a denominator of 1 + 1e-6 shows here and in float32 alone
    if case.values == "far_below" and case.layout["x"].startswith("broadcast"):
        return False
    least = {"partial_neg_inf": 33, "ascending": 33, "steep": 127}.get(case.values, 0)
    if cols < least or (least and case.layout["x"] == "broadcast_last"):
        return False  # the row is one tile, or does not change along its columns
    return bounds_rows.informative(case, SPECIAL)


def _rows_sum_to_one(call, arguments, outputs, case):
    y = outputs[0].double()
    error = (y.sum(-1) - 1).abs().max().item()
    limit = torch.finfo(outputs[0].dtype).eps * (1 + 2 * math.sqrt(y.shape[-1]))
    return None if error <= limit else f"a row sums to 1 ± {error:.3g}; at most {limit:.3g} is rounding"


def _shift_invariant(call, arguments, outputs, case):
    """The same logits, multiples of 1/8, moved by a whole number: both are exact in every dtype."""
    x = (8 * arguments["x"].clamp(-4, 4)).round() / 8
    here, there = (call(**{**arguments, "x": x + shift})[0].double() for shift in (0.0, -8.0))
    limit = torch.finfo(arguments["x"].dtype).eps * (here + there) + 64 * torch.finfo(torch.float32).eps * here
    worst = ((here - there).abs() - limit).max().item()
    return None if worst <= UNDERFLOW else f"x - 8 gives other values than x: {worst:.3g} more than rounding explains"


contract = Contract(
    operands={"x": Operand("rows cols")},
    outputs={"y": Output("rows cols")},
    sizes=[{"rows": rows, "cols": cols} for rows, cols in SIZES],
    regular=bounds_rows.REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=bounds_rows.OVER_TILES,
    also=bounds_rows.LONG_ROWS
    | {
        "one_column": Also({"rows": 7, "cols": 1}, "equal"),
        "special_column": Also({"rows": 7, "cols": 1}, _special_column),
        "falling": Also({"rows": 2, "cols": 10007}, lambda draw: {"x": bounds_rows.falling(draw, draw.shape("x"))}),
        "low_weights": Also({"rows": 2, "cols": 10007}, lambda draw: {"x": values.low_weights(draw, draw.shape("x"))}),
        # beside lanes beyond its end
        "special_row": Also({"rows": 5, "cols": 33}, _special_row(-math.inf, everywhere=True)),
        "special_tiles": Also({"rows": 2, "cols": 10007}, "partial_neg_inf"),  # 3335 columns of -inf, then others
    },
    int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"x": 0}),
    values={
        "normal": _family(values.normal),
        "large": _family(values.large),
        "row_offsets": _family(_row_offsets),
        "ascending": _family(values.ascending),
        "steep": _family(_steep),
        "far_below": lambda draw: {"x": _far_below(draw, draw.shape("x"))},
        "equal": _equal,
        "partial_neg_inf": lambda draw: {"x": bounds_rows.partial_neg_inf(draw, draw.shape("x"))},
        "row_of_neg_inf": _special_row(-math.inf, everywhere=True),
        "one_pos_inf": _special_row(math.inf, everywhere=False),
        "one_nan": _special_row(math.nan, everywhere=False),
        "nan_and_neg_inf": _nan_and_neg_inf,
    },
    valid=_valid,
    expect=expect,
    exact={"equal": ["y"]},
    large=common.ROWS,
    flops=lambda size, param: 5 * size["rows"] * size["cols"],
    bytes=lambda size, param, item: 2 * size["rows"] * size["cols"] * item,
    invalid=bounds_rows.invalid_calls("x"),
    opinfo=("softmax", bounds_rows.softmax_sample),
    properties=[
        Property("rows sum to one", _rows_sum_to_one),
        Property("shift invariance", _shift_invariant),
        Property("rows are independent", bounds_rows.rows_are_independent("x")),
    ],
)

bench = Bench(
    baselines=[
        *common.torch_baselines(lambda x: {"y": torch.softmax(x, -1)}),
        common.liger("softmax", "LigerSoftmaxFunction", lambda x: (x,), "y"),
        common.on_arrays(
            "CuPy", "cupy", lambda cupy, x: common.library("cupyx.scipy.special").softmax(x, axis=-1), "y"
        ),
    ],
    independent_axes=common.INDEPENDENT_AXES,
)
