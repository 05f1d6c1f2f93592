"""What the contracts of the norms share: eps = 0, and one contract each for the norm of a sum and for gradients."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.spec import layouts, values
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import (
    Also,
    Case,
    Contract,
    Draw,
    Int64Index,
    Operand,
    Output,
    OwnStatistics,
    Property,
    beyond_largest,
)

VARIANCE = 1e-6  # of `tiny` where eps is 0: any default of eps in its place shows


def tiny(draw: Draw, shape):
    """`values.tiny`, also where eps is 0."""
    if draw.param["eps"]:
        return values.tiny(draw, shape)
    return values.lift_square(draw.normal(shape, VARIANCE**0.5), VARIANCE**0.5)


def divides(case: Case, terms: int) -> bool:
    """Whether variance + eps is above 0 in every row of `terms` values. With eps 0 that is asked of `tiny` alone, which
    shows it."""
    if case.param["eps"]:
        return True
    return case.values == "tiny" and terms > 4 and case.layout["x"] != "broadcast_last"


def of_rows(centred: bool) -> OwnStatistics:
    """How the rows of y come about in a layer norm, if `centred`, or in an RMS norm."""

    def of(exact, params):
        shift = exact.get("bias")
        return exact["weight"], torch.zeros(()).double() if shift is None else shift, exact["x"].shape[0]

    def x(exact):
        return exact["x"] if exact.get("residual") is None else exact["x"] + exact["residual"]

    return OwnStatistics("y", "row", centred, of, x)


def add_norm(reference: Callable[..., Any], norm: Callable[..., dict[str, Expected]], centred: bool) -> Contract:
    """The contract of h = x + residual, y = norm(h), (rows, cols) each: of the layer norm, which has a bias, if
    `centred`, else of the RMS norm.

    `reference(x, residual, weight, ..., eps)` returns y and h, `norm` is the `expect` of the norm alone.
    """
    vectors = ("weight", "bias") if centred else ("weight",)
    statistics = bounds_rows.layer_statistics if centred else bounds_rows.rms_statistics

    def expect(inputs, params, *, dtype, compute=None):
        """y is the norm of h before or after h is rounded to the output's dtype, each with the answers that the norm
        alone has; or the statistics, or the mean alone, are of h before, and all else of h after."""

        def about_mean(h, rounded):
            """As DeepSpeed's layer_norm_residual has it: h is added up as it is stored, and read again."""
            centred_h = rounded - h.mean(-1, keepdim=True)
            rstd = (centred_h.square().mean(-1, keepdim=True) + params["eps"]).rsqrt()
            return centred_h * rstd * inputs["weight"] + (0 if inputs["bias"] is None else inputs["bias"])

        y, h = reference(**inputs, **params)
        expected = norm({**inputs, "x": h}, params, dtype=dtype)["y"]
        expected.answer = y
        if dtype is not torch.float32:
            rounded = h.to(dtype).to(torch.float64)
            after = norm({**inputs, "x": rounded}, params, dtype=dtype)["y"]
            scale = statistics(h, params["eps"]).rstd * inputs["weight"]  # dy/dh with the statistics held
            mixed = replace(expected, answer=y + (rounded - h) * scale, alternatives=[])
            expected.alternatives += [after, *after.alternatives, mixed]
            if centred:
                expected.alternatives.append(replace(expected, answer=about_mean(h, rounded), alternatives=[]))
        return {"y": expected, "h": Expected(h)}

    def family(make, cancel=False, residual=None):
        def drawn(draw: Draw):
            x = make(draw, draw.shape("x"))
            other = bounds_rows.opposite(draw, x) if cancel else make(draw, draw.shape("residual"))
            other = other if residual is None else residual(other)
            return {"x": x, "residual": other, **{name: bounds_rows.signal(draw, name) for name in vectors}}

        return drawn

    def large_in_both(draw: Draw, shape):
        """Near the largest number in the last column: h is beyond it there, and finite in float32."""
        x = draw.normal(shape)
        x[:, -1] = draw.uniform((shape[0],), 0.75, 1.0) * torch.finfo(draw.dtype).max
        return x

    def valid(case: Case) -> bool:
        summands = ("x",) if case.values == "no_residual" else ("x", "residual")
        if not divides(case, case.size["cols"]) or bounds_rows.repeats(case, *summands):
            return False
        if bounds_rows.hides_cancellation(case, case.size["cols"]):
            return False
        return bounds_rows.informative(case, ("one_nan",))

    return Contract(
        operands={
            "x": Operand("rows cols"),
            "residual": Operand("rows cols"),
            "weight": Operand("cols", layouts.VECTOR),
            **({"bias": Operand("cols", bounds_rows.OPTIONAL)} if centred else {}),
        },
        outputs={"y": Output("rows cols"), "h": Output("rows cols")},
        sizes=bounds_rows.SIZES,
        regular=bounds_rows.REGULAR,
        over_tiles=bounds_rows.OVER_TILES,
        beyond_grid=bounds_rows.BEYOND_GRID,
        own_statistics=of_rows(centred),
        also=bounds_rows.LONG_ROWS
        | bounds_rows.ONE
        | bounds_rows.large_squares(family)
        | (bounds_rows.special_one_column(family(bounds_rows.one_nan)) if centred else {})
        | (bounds_rows.first_element_far_off(family(bounds_rows.first_far_off)) if centred else {})
        | beyond_largest({"rows": 3, "cols": 33}, bounds_rows.with_largest_weight(family(bounds_rows.outlier)))
        | {"beyond_largest_sum": Also({"rows": 3, "cols": 33}, family(large_in_both), dtype="float16")},
        int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"x": 0, "residual": 0}),
        values={
            "normal": family(bounds_rows.lifted),
            **({"mean_offset": family(values.mean_offset)} if centred else {"large": family(values.large)}),
            "tiny": family(tiny),
            "ascending": family(values.ascending),
            "row_scales": family(values.row_scales),
            "cancel": family(bounds_rows.lifted, cancel=True),
            "no_residual": family(bounds_rows.lifted, residual=torch.zeros_like),
            "binary": family(values.binary),
            "one_nan": family(bounds_rows.one_nan),
        },
        params={"eps": (1e-5 if centred else 1e-6, 1e-3, 0.1, 0.0)},
        valid=valid,
        expect=expect,
        exact={"binary": ["h"]},
        large=common.ROWS,
        flops=lambda size, param: (9 if centred else 5) * size["rows"] * size["cols"],
        bytes=lambda size, param, item: (4 * size["rows"] + len(vectors)) * size["cols"] * item,
        invalid=bounds_rows.invalid_calls("x", matrices=("residual",), vectors=vectors, optional=("bias",)),
        properties=[
            Property("h is x + residual rounded once", bounds_rows.sum_is_rounded_once),
            Property("x and residual change places", bounds_rows.summands_commute),
            Property(f"weight 0 gives {'the bias' if centred else '0'}", bounds_rows.zero_weight_leaves_bias),
            Property("rows are normalised", bounds_rows.unit_weight_normalises("x", "residual", centred=centred)),
            Property("rows are independent", bounds_rows.rows_are_independent("x", "residual", outputs=(0, 1))),
        ],
    )


def gradient(
    expect: Callable[..., dict[str, Expected]],
    derive: Callable[..., dict[str, torch.Tensor | None]],
    sums_repeat: Callable[[Case], bool],
    centred: bool,
) -> Contract:
    """The contract of the gradient of the layer norm, which has a bias and a mean, if `centred`, else of the RMS norm.

    `derive` gives the statistics that may be passed, `sums_repeat(case)` says where a sum of theirs beside those of x
    along a row adds one number over and over (`bounds_rows.repeats`).
    """
    statistics: Sequence[str] = ("mean", "rstd") if centred else ("rstd",)
    vectors = ("dweight", "dbias") if centred else ("dweight",)
    orthogonal = "rows of dx sum to 0 with weight 1" if centred else "dx is orthogonal to x but for eps"

    def family(make, upstream):
        def drawn(draw: Draw):
            x, dy = make(draw, draw.shape("x")), upstream(draw, draw.shape("dy"))
            return {"x": x, "weight": bounds_rows.signal(draw, "weight"), "dy": dy}

        return drawn

    def valid(case: Case) -> bool:
        if not divides(case, case.size["cols"]):
            return False
        if bounds_rows.repeats(case, "x") or sums_repeat(case):
            return False
        if bounds_rows.hides_cancellation(case, case.size["cols"]):
            return False
        return bounds_rows.informative(case, ("one_nan",))

    # the rstd about a mean that is given is a sum of its own
    mean_alone = {"mean_alone": Also({"rows": 3, "cols": 33}, "mean_offset", layouts={"rstd": "none"})}

    def statistic() -> Operand:
        return Operand("rows", bounds_rows.STATISTIC, torch.float32, derived=True, positional=False, counts=False)

    return Contract(
        gradient_of="layer_norm" if centred else "rms_norm",
        operands={
            "x": Operand("rows cols"),
            "weight": Operand("cols", layouts.VECTOR),
            "dy": Operand("rows cols"),
            **{name: statistic() for name in statistics},
        },
        outputs={"dx": Output("rows cols"), **{name: Output("cols") for name in vectors}},
        sizes=bounds_rows.BACKWARD_SIZES,
        regular=bounds_rows.REGULAR,
        over_tiles=bounds_rows.OVER_TILES,
        beyond_grid=bounds_rows.BEYOND_GRID,
        aligned=[{"rows": 33, "cols": 1032}],  # rows of whole 16 bytes, for kernels that take no others
        also=bounds_rows.LONG_ROWS
        | bounds_rows.ONE
        | bounds_rows.ONE_ROW_MORE
        | bounds_rows.large_squares(family, bounds_rows.lifted)
        | (bounds_rows.special_one_column(family(bounds_rows.one_nan, bounds_rows.lifted)) if centred else {})
        | beyond_largest({"rows": 33, "cols": 129}, bounds_rows.beyond_largest_sums)
        | (mean_alone if centred else {}),
        int64_index=Int64Index(bounds_rows.BEYOND_INT32, rows={"x": 0, "dy": 0}),
        values={
            "normal": family(bounds_rows.lifted, bounds_rows.lifted),
            **(
                {"mean_offset": family(values.mean_offset, values.normal)}
                if centred
                else {"large": family(values.large, values.normal)}
            ),
            "gradient_offset": family(values.normal, bounds_rows.offset_gradient),
            "tiny": family(tiny, values.normal),
            "ascending": family(values.ascending, values.ascending),
            "row_scales": family(values.row_scales, values.row_scales),
            "one_nan": family(bounds_rows.one_nan, bounds_rows.lifted),
            "cancelling_rows": bounds_rows.cancelling_rows,
            **({"binary": family(values.normal, values.binary)} if centred else {}),
        },
        params={"eps": (1e-5 if centred else 1e-6, 1e-3, 0.1, 0.0)},
        valid=valid,
        expect=expect,
        derive=derive,
        exact={"binary": ["dbias"]} if centred else {},
        large=common.ROWS,
        flops=lambda size, param: (16 if centred else 12) * size["rows"] * size["cols"],
        bytes=lambda size, param, item: (3 * size["rows"] + 1 + len(vectors)) * size["cols"] * item,
        invalid=bounds_rows.invalid_calls("x", matrices=("dy",), vectors=("weight", *statistics), optional=statistics),
        properties=[
            Property("rows are independent", bounds_rows.rows_are_independent("x", "dy")),
            Property("linear in dy", bounds_rows.scaled_gradient, bitwise=True),
            Property(orthogonal, bounds_rows.gradient_is_orthogonal(centred=centred)),
        ],
    )
