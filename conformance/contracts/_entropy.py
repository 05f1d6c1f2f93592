"""What the contracts of cross entropy and of its gradient share: sizes, families of logits and targets, the condition
of lse in float32, invalid calls."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from touchstone.conformance.contracts import _bounds_rows as bounds_rows
from touchstone.conformance.spec import values
from touchstone.conformance.spec.budget import finite
from touchstone.conformance.spec.contract import Also, Case, Draw, Invalid, Operand, Regular

SIZES = [{"rows": rows, "V": V} for rows, V in [(7, 33), (1, 1), (0, 5), (130, 2), (3, 1031), (1, 32771)]]
_POWERS = [(64, 64), (64, 128), (64, 256), (128, 64), (64, 512), (64, 1024), (128, 128), (192, 64)]
OVER_TILES = {"rows": 5, "V": 2081}
REGULAR = Regular([{"rows": rows, "V": V} for rows, V in _POWERS])
BEYOND_GRID = [{"rows": 69001, "V": 3}]
LARGE = [{"rows": rows, "V": V} for rows, V in [(8192, 4096), (8192, 32768), (4096, 128256)]]
PARAMS = {
    "reduction": ("mean", "sum", "none"),
    "ignore_index": (-100, 0),
    "label_smoothing": (0.0, 0.1),
    "z_loss": (0.0, 0.01),
}
LAYOUTS = ("contiguous", "transposed", "sliced", "step", "offset")
IGNORED = "rows whose target is ignore_index"


def ignored(inputs, params) -> torch.Tensor:
    """(rows,): the rows whose logits a call must leave alone."""
    return inputs["target"] == params["ignore_index"]


def operands() -> dict[str, Operand]:
    """logits and target."""
    return {
        "logits": Operand(
            "rows V", LAYOUTS, garbage=lambda inputs, params: ignored(inputs, params)[:, None], unused=IGNORED
        ),
        "target": Operand(
            "rows", ("contiguous", "step", "offset"), dtypes=(torch.int64, torch.int32), indexes="V", fixed=True
        ),
    }


def targets(draw: Draw) -> torch.Tensor:
    """Any class, the first and the last one too; every seventh row is ignored."""
    rows, V = draw.shape("logits")
    target = draw.integers((rows,), 0, V)
    target[2:3], target[-1:] = 0, V - 1
    target[1::7] = draw.param["ignore_index"]
    return target


def _lifted(make: Callable[[Draw, Sequence[int]], torch.Tensor], classes=targets):
    return lambda draw: (values.lift_tail(make(draw, draw.shape("logits"))), classes(draw))


def _row_offsets(draw: Draw, shape):
    """Rows far apart: the maximum of another row over- or underflows, padding with 0 wins a negative row's."""
    offset = torch.tensor([-150.0, 150.0, -30.0], dtype=torch.float64)[torch.arange(shape[0]) % 3]
    return draw.normal(shape) + offset[:, None]


def _steep(draw: Draw, shape):
    """Rising by 400 along the row: exp overflows under the maximum of any earlier tile."""
    return draw.normal(shape) + torch.linspace(-200.0, 200.0, shape[1], dtype=torch.float64)


def _far_below(draw: Draw, shape):
    """All below -5e4, one of them by less than the others: a finite number in place of -inf, where a running maximum
    starts or for padding, is larger."""
    x = torch.full(tuple(shape), -6.4e4, dtype=torch.float64)
    rows = torch.arange(shape[0])
    x[rows, (7 * rows + shape[1] // 2) % shape[1]] = -5.5e4
    return x


def _all_ignored(draw: Draw) -> torch.Tensor:
    return torch.full((draw.size["rows"],), draw.param["ignore_index"], dtype=torch.float64)


def _certain(draw: Draw):
    """The class has logit 0 and the others -200: p is 1 and lse 0 in any form of the exponential."""
    target = targets(draw)
    logits = draw.normal(draw.shape("logits")) - 200
    logits[torch.arange(len(target)), target.long().clamp_min(0)] = 0
    return logits, target


def _partial_neg_inf(draw: Draw):
    """-inf in whole leading tiles and in scattered places; the last row's class has it too."""
    logits = bounds_rows.partial_neg_inf(draw, draw.shape("logits"))
    target = targets(draw)
    V = logits.shape[1]
    target[target != draw.param["ignore_index"]] = V - 1
    target[-1:] = 1
    logits[-1:, 1] = -math.inf
    return logits, target


def _one_nan(draw: Draw):
    """One NaN in the last row, which is not ignored."""
    return bounds_rows.one_nan(draw, draw.shape("logits")), targets(draw)


FAMILIES = {
    "normal": _lifted(values.normal),
    "large": _lifted(values.large),
    "row_offsets": _lifted(_row_offsets),
    "steep": _lifted(_steep),
    "certain": _certain,
    "partial_neg_inf": _partial_neg_inf,
    "one_nan": _one_nan,
    "all_ignored": _lifted(values.normal, _all_ignored),
}


def also(family: Callable[[Any], Any], **layouts: str) -> dict[str, Also]:
    """The single cases; `family` makes one of a contract's of a function that draws logits and targets."""
    return {
        "large_vocabulary": Also({"rows": 3, "V": 66001}),  # the last row's class is the last
        **bounds_rows.powers_of_two(lambda n: {"rows": 3, "V": n}),
        "falling": Also({"rows": 3, "V": 10007}, family(_lifted(bounds_rows.falling))),
        "low_weights": Also({"rows": 3, "V": 10007}, family(_lifted(values.low_weights))),
        "far_below": Also({"rows": 7, "V": 33}, family(_lifted(_far_below)), layouts=layouts),
    }


def valid(case: Case) -> bool:
    """Leave out what says nothing: values of no rows, special ones in the longest row, -inf under label smoothing."""
    rows, V = case.size["rows"], case.size["V"]
    if not rows:
        return case.values == "normal"
    if V > 1031 and OVER_TILES["V"] != V and case.values in ("certain", "partial_neg_inf", "one_nan", "all_ignored"):
        return False
    if case.values in ("certain", "partial_neg_inf") and case.param["label_smoothing"]:
        return False  # not exact; outside
    return V > 2 or case.values not in ("steep", "partial_neg_inf")


def lse_condition(z: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """(rows, V), (rows,) -> (rows,): what an error in every exponent can be worth in lse."""
    size = finite(z).abs()
    p = finite(torch.exp(z - lse[:, None]))
    return 2 + (size.amax(-1) if z.shape[1] else finite(lse)) + (p * size).sum(-1)


def invalid_calls(gradient: bool) -> list[Invalid]:
    """Calls with one argument spoilt."""

    def spoilt(name, how, change, error, says=""):
        return Invalid(f"{name} {how}", lambda a: {**a, name: change(a[name])}, error, rf"\b{name}\b.*{says}")

    calls = [
        *bounds_rows.invalid_calls("logits"),
        spoilt("target", "is one too long", lambda t: torch.cat([t, t[:1]]), ValueError),
        spoilt("target", "is 2-D", lambda t: t[None], ValueError),
        spoilt("target", "is float32", lambda t: t.float(), TypeError, "float32"),
        spoilt("target", "is uint8", lambda t: t.clamp(0, 1).byte(), TypeError, "uint8"),
        spoilt("target", "is on another device", lambda t: t.to("meta"), ValueError),
        spoilt("target", "is None", lambda t: None, TypeError),
        spoilt("reduction", "is unknown", lambda r: "batchmean", ValueError, "batchmean"),
        spoilt("label_smoothing", "is above 1", lambda r: 1.5, ValueError, "1.5"),
    ]
    if gradient:
        calls += [
            spoilt("dloss", "has an axis too many", lambda t: t[..., None, None], ValueError),
            spoilt("dloss", "is float64", lambda t: t.double(), TypeError, "float64"),
            spoilt("dloss", "is None", lambda t: None, TypeError),
            spoilt("lse", "is one too long", lambda t: torch.cat([t, t[:1]]), ValueError),
        ]
    return calls
