"""merge_states(o, lse): o and lse of attention over all keys from those over parts of them."""

import math
from dataclasses import replace

import torch

from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.baselines import Bench, compiled, eager
from touchstone.conformance.spec.budget import Expected, budget, finite
from touchstone.conformance.spec.compare import compare
from touchstone.conformance.spec.contract import Also, Case, Contract, Draw, Invalid, Operand, Output, Property, Regular
from touchstone.reference.merge_states import torch_merge_states

SIZES = [
    dict(P=parts, rows=rows, D=dim)
    for parts, rows, dim in [
        (3, 5, 16),
        (1, 4, 24),
        (2, 35, 64),
        (8, 3, 130),
        (33, 6, 40),
        (5, 1, 1),
        (7, 2, 513),
        (0, 3, 8),
        (4, 0, 8),
        (1031, 3, 9),
    ]
]
REGULAR = Regular(
    [
        dict(P=parts, rows=rows, D=dim)
        for parts, rows, dim in [
            (2, 64, 64),
            (4, 64, 128),
            (8, 64, 64),
            (2, 128, 128),
            (16, 64, 64),
            (4, 128, 64),
            (2, 64, 256),
            (32, 64, 64),
        ]
    ]
)
OVER_TILES = dict(P=37, rows=70, D=9)
BEYOND_GRID = [dict(P=2, rows=69001, D=2)]
LARGE = [dict(P=parts, rows=rows, D=128) for parts, rows in [(2, 131072), (8, 65536), (32, 16384), (16, 2048)]]
NAMES = ("o", "lse")


def expect(inputs, params, *, dtype, compute=None):
    """A part's weight comes from exp(lse_p - lse), or step by step from exp(old - new) where parts are merged one after
    another: its relative error is a rounding of both, and one of exp and of the product with it, at every step. Merged
    as old + share·(o_p - old), a result is rounded as what was before, whatever weight that has at last."""
    o, lse = inputs["o"], inputs["lse"]
    merged, of_all = torch_merge_states(o, lse)
    weights = finite(torch.exp(lse - torch.where(of_all.isneginf(), 0.0, of_all)))
    error = weights * (4 + finite(lse).abs() + finite(of_all).abs())
    sizes = torch.where(weights[..., None] > 0, finite(o).abs(), 0.0)
    condition = (error[..., None] * sizes).sum(0) + finite(merged).abs() * error.sum(0)[:, None]
    if len(o):
        condition = condition + 2 * sizes.amax(0)
    return {
        "o": Expected(merged, parts=[(len(o), condition)], drift=0.2),
        "lse": Expected(of_all, parts=[(len(o), 2 + error.sum(0))], dtype=torch.float32, drift=0.2),
    }


def _drawn(draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    return draw.normal(draw.shape("o")), draw.normal(draw.shape("lse"), 2.0)


def _normal(draw: Draw):
    """Some thousandths to most of the weight for each part."""
    return _drawn(draw)


def _empty_parts(draw: Draw):
    """Parts without keys, the first ones too; of every third row all are. Their o is any number."""
    o, lse = _drawn(draw)
    parts = len(lse)
    lse[: parts // 2, 0:1] = -math.inf
    lse[draw.uniform(lse.shape) < 0.3] = -math.inf
    lse[:, 1:2] = draw.normal((parts, len(lse[0, 1:2])))
    lse[:, 2::3] = -math.inf
    return o, lse


def _large(draw: Draw):
    """Scores of some hundreds in either direction: exp without the maximum subtracted overflows, or is 0."""
    o, lse = _drawn(draw)
    side = torch.where(torch.arange(lse.shape[1]) % 2 == 0, 300.0, -300.0)
    return o, lse + side


def _sentinels(draw: Draw):
    """lse beyond ±10^5, further from 0 than numbers that kernels put in the place of −∞; those of two neighbouring rows
    on either side."""
    o, lse = _drawn(draw)
    side = torch.where(torch.arange(lse.shape[1]) % 2 == 0, 2.0**17, -(2.0**17))
    return o, lse.round() + side


def _growing(draw: Draw):
    """The maximum moves with every part, so far that exp overflows under one that stays behind."""
    o, lse = _drawn(draw)
    return o, lse * 0.25 + torch.linspace(0, 120, len(lse), dtype=torch.float64)[:, None]


def _falling(draw: Draw):
    """The first part weighs most."""
    o, lse = _drawn(draw)
    return o, lse * 0.25 - torch.linspace(0, 12, len(lse), dtype=torch.float64)[:, None]


def _cancelling(draw: Draw):
    """Parts of about one weight, values above zero in one half of them and below in the other."""
    o, lse = _drawn(draw)
    o = o.abs() * 0.25 + 1
    o[len(o) // 2 :] *= -1
    return o, lse * 0.05


def _special(draw: Draw):
    """NaN in the lse of one row, and in one element of another row's last part."""
    o, lse = _empty_parts(draw)
    lse[:1, :1] = math.nan
    o[-1:, 1:2, -1:] = math.nan
    return o, lse


def _family(make, last: float = 3.0):
    def family(draw: Draw):
        o, lse = make(draw)
        lse[-1:] += last  # the last part counts
        return {"o": o, "lse": lse}

    return family


def _valid(case: Case) -> bool:
    if 0 in case.size.values():
        return case.values == "normal"
    return case.size["rows"] >= 4 or case.values != "special"


def _with_parts(number):
    """case -> the same case with another number of parts."""

    def other(case: Case) -> Case:
        sizes = {**case.size, "P": number(case.size["P"])}
        return replace(case, sizes=tuple(sizes.items()))

    return other


def _expected(arguments, case: Case) -> dict[str, Expected]:
    return expect(_exact(arguments), {}, dtype=case.torch_dtype)


def _exact(arguments) -> dict[str, torch.Tensor]:
    return {name: arguments[name].detach().cpu().double() for name in NAMES}


def _differs(got, expected: dict[str, Expected], case: Case, what: str) -> str | None:
    for name, value in zip(NAMES, got, strict=True):
        verdict = compare(value, expected[name], case.torch_dtype)
        if not verdict.ok:
            return f"{what}: {name}: {verdict.message}"
    return None


def _one_part_is_itself(call, arguments, outputs, case):
    """o to the bit, since its weight is 1; lse may have been to base 2 meanwhile. However low the lse is: a power of
    two, whose products with log2 e are alike however often they are rounded."""
    one = {name: arguments[name][-1:].clone() for name in NAMES}
    for given in (one, {**one, "lse": torch.full_like(one["lse"], -(2.0**101))}):
        o, lse = call(**given)
        if not torch.equal(o, one["o"][0]):
            return "one part alone is not returned as it is"
        expected = _expected(given, case)
        if wrong := _differs((o, lse), expected, case, "of one part alone"):
            return wrong
    return None


def _empty_parts_do_not_matter(call, arguments, outputs, case):
    o, lse = arguments["o"], arguments["lse"]
    nothing = torch.full_like(lse[:1], -math.inf)
    got = call(o=torch.cat([o[:1] + 1, o, o[:1] - 1]), lse=torch.cat([nothing, lse, nothing]))
    return _differs(got, _expected(arguments, case), case, "parts without keys, added at both ends, change the answer")


def _order_does_not_matter(call, arguments, outputs, case):
    got = call(**{name: arguments[name].flip(0) for name in NAMES})
    return _differs(got, _expected(arguments, case), case, "parts in reverse order give another answer")


def _merged_twice(call, arguments, outputs, case):
    """What two calls give of the parts is merged by a third: the first two round once more."""
    half = len(arguments["o"]) // 2
    states = [call(**{name: arguments[name][part] for name in NAMES}) for part in (slice(half), slice(half, None))]
    got = call(**{name: torch.stack([state[i] for state in states]) for i, name in enumerate(NAMES)})
    expected = _expected(arguments, case)
    exact = _exact(arguments)
    size = (torch.exp(exact["lse"] - expected["lse"].answer)[..., None] * exact["o"].abs()).sum(0)
    steps = 16 * torch.finfo(torch.float32).eps * (4 + exact["lse"].abs().amax(0))
    for name, more in {"o": size * steps[:, None], "lse": steps}.items():
        expected[name] = replace(expected[name], extra=budget(expected[name], case.torch_dtype) + more)
    expected["o"].rounding = size
    return _differs(got, expected, case, "merged parts merged give another answer")


def _spoil(name, change):
    return lambda arguments: {**arguments, name: change(arguments[name])}


contract = Contract(
    operands={
        "o": Operand(
            "P rows D", ("contiguous", "second_outside", "transposed", "sliced", "step", "offset", "broadcast")
        ),
        "lse": Operand("P rows", layouts.MATRIX, torch.float32),
    },
    outputs={"o": Output("rows D"), "lse": Output("rows", torch.float32)},
    also={
        "sentinels": Also(dict(P=4, rows=6, D=16), _family(_sentinels)),
        "special_one_part": Also(dict(P=1, rows=6, D=16), "empty_parts"),
    },
    sizes=SIZES,
    regular=REGULAR,
    beyond_grid=BEYOND_GRID,
    over_tiles=OVER_TILES,
    values={
        "normal": _family(_normal),
        "empty_parts": _family(_empty_parts),
        "large": _family(_large),
        "growing": _family(_growing),
        "falling": _family(_falling, 0.0),
        "cancelling": _family(_cancelling, 0.0),
        "special": _family(_special),
    },
    valid=_valid,
    expect=expect,
    large=LARGE,
    flops=lambda size, param: 3 * size["P"] * size["rows"] * size["D"] + 1,
    calls=lambda size, param: size["P"] * size["rows"],
    bytes=lambda size, param, item: (size["P"] + 1) * size["rows"] * (size["D"] * item + 4),
    invalid=[
        Invalid("o is 2-D", _spoil("o", lambda o: o[0]), ValueError, r"\bo\b"),
        Invalid("o is float64", _spoil("o", torch.Tensor.double), TypeError, r"\bo\b.*float64"),
        Invalid("o is int32", _spoil("o", torch.Tensor.int), TypeError, r"\bo\b.*int32"),
        Invalid("o is None", _spoil("o", lambda o: None), TypeError, r"\bo\b.*None"),
        Invalid("lse of one part less", _spoil("lse", lambda lse: lse[1:]), ValueError, r"\blse\b"),
        Invalid("lse of one row less", _spoil("lse", lambda lse: lse[:, 1:]), ValueError, r"\blse\b"),
        Invalid("lse is float16", _spoil("lse", torch.Tensor.half), TypeError, r"\blse\b.*float16"),
        Invalid("lse is elsewhere", _spoil("lse", lambda lse: lse.to("meta")), ValueError, r"\blse\b.*meta"),
    ],
    properties=[
        Property("one part is returned as it is", _one_part_is_itself, elsewhere=_with_parts(lambda parts: 1)),
        Property(
            "parts without keys do not matter",
            _empty_parts_do_not_matter,
            elsewhere=_with_parts(lambda parts: parts + 2),
        ),
        Property("order of parts does not matter", _order_does_not_matter),
        Property("parts of parts merge alike", _merged_twice, "cancelling", elsewhere=_with_parts(lambda parts: 2)),
    ],
)


def _eager(o, lse, **_):
    merged = torch.logsumexp(lse, 0)
    return {"o": (torch.exp(lse - merged)[..., None] * o).sum(0).to(o.dtype), "lse": merged}


bench = Bench(baselines=[eager("logsumexp, exp, sum", _eager), compiled(_eager)], independent_axes=(("rows",),))
