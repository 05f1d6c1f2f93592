"""One contract for rope and its backward, which differ in the sign of sin.

The answer uses the tables as they are given, in float32 or in the call's dtype. In 16 bits a second answer is that of
code which rounds both products, where such tables are given (Hugging Face's in eager mode).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from touchstone.conformance.contracts._laws import adjoint
from touchstone.conformance.spec import layouts
from touchstone.conformance.spec.budget import Expected, finite
from touchstone.conformance.spec.contract import (
    Also,
    Case,
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

SIZES = [  # B, Hq, Hkv, S, D, R/2, P
    (2, 3, 2, 5, 40, 10, 9),
    (1, 2, 1, 3, 64, 32, 7),
    (1, 1, 1, 1, 2, 1, 1),
    (0, 2, 1, 3, 8, 2, 5),
    (1, 2, 0, 3, 16, 8, 5),
    (1, 1, 2, 9, 34, 17, 12),
    (3, 1, 1, 4, 64, 8, 6),
    (1, 2, 1, 17, 80, 20, 40),
    (1, 1, 9, 70, 264, 20, 70001),
]
BEYOND_GRID = [(2, 34501, 1, 1, 4, 2, 2), (1, 1, 1, 69001, 4, 2, 69001)]
REGULAR = [  # whole heads are turned
    (1, 4, 4, 16, 64, 32, 16),
    (2, 2, 2, 16, 64, 32, 16),
    (1, 2, 2, 16, 128, 64, 16),
    (1, 8, 2, 8, 64, 32, 8),
    (2, 4, 1, 8, 128, 64, 8),
    (1, 2, 2, 32, 64, 32, 32),
    (1, 4, 4, 8, 128, 64, 8),
    (4, 2, 1, 8, 64, 32, 8),
]
LETTERS = ("B", "Hq", "Hkv", "S", "D", "half", "P")
LARGE = [dict(zip(LETTERS, (4, 32, 8, 4096, 128, 64, 4096), strict=True))]
K = ("contiguous", "heads_inside", "sliced", "step", "offset")
TABLE = ("contiguous", "transposed", "sliced", "offset")
PRODUCTS_ROUNDED = (
    "both products of an element are rounded to the input's dtype before they are added, as by separate operations in "
    "that dtype (Hugging Face's apply_rotary_pos_emb)"
)


def _sizes(rows: Sequence[tuple[int, ...]]) -> list[dict[str, int]]:
    return [dict(zip(LETTERS, row, strict=True)) for row in rows]


def expected(x, cos, sin, positions, interleaved, dtype) -> Expected:
    """Of one of the two tensors, (B, H, S, D)."""
    c, s = (t[: x.shape[2]] if positions is None else t[positions.long()][:, None] for t in (cos, sin))
    half, dim = cos.shape[1], 2 * cos.shape[1]
    places = (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(half), slice(half, dim))
    one, other = (x[..., place] for place in places)
    pairs = (one * c, -other * s), (other * c, one * s)

    def assembled(parts):
        whole = x.clone()
        for place, part in zip(places, parts, strict=True):
            whole[..., place] = part
        return whole

    condition = assembled([finite(left).abs() + finite(right).abs() for left, right in pairs])
    condition[..., dim:] = 0
    found = Expected(assembled([left + right for left, right in pairs]), parts=[(2, condition)])
    if dtype is not torch.float32 and all(torch.equal(t, t.to(dtype).to(torch.float64)) for t in (cos, sin)):
        stored = [[product.to(dtype).to(torch.float64) for product in pair] for pair in pairs]
        rounded = Expected(assembled([left + right for left, right in stored]), note=PRODUCTS_ROUNDED)
        found.alternatives.append(rounded)
    return found


def _angles(draw: Draw) -> torch.Tensor:
    """Of positions and pairs, as language models have them."""
    rows, half = draw.shape("cos")
    position = torch.arange(rows, dtype=torch.float64)
    pair = torch.arange(half, dtype=torch.float64)
    return position[:, None] * 10000.0 ** (-pair / max(half, 1))


def rotation(q: str, k: str, returned: tuple[str, str], turn: int, **more: Any) -> Contract:
    """The contract of a function of (q, k, cos, sin, positions, *, interleaved), of which the first two are called `q`
    and `k`; `turn` is the sign of sin."""

    def expect(inputs, params, *, dtype, compute=None):
        tables = inputs["cos"], turn * inputs["sin"], inputs["positions"]
        named = zip(returned, (q, k), strict=True)
        return {out: expected(inputs[x], *tables, params["interleaved"], dtype) for out, x in named}

    def family(make, tables):
        def drawn(draw: Draw):
            cos, sin = tables(draw)
            size = draw.shape("positions")
            positions = draw.integers(size, 0, draw.size["P"])
            device = positions.device
            each = {name: make(draw, draw.shape(name)) for name in (q, k)}
            return {**each, "cos": cos.to(device), "sin": sin.to(device), "positions": positions}

        return drawn

    def rotations(draw: Draw):
        return _angles(draw).cos(), _angles(draw).sin()

    def any_tables(draw: Draw):
        """No rotations: a sine that is computed from the cosine shows, and a table in the other's place."""
        return draw.normal(draw.shape("cos"), 1.0, 2.0), draw.normal(draw.shape("sin"), 1.0, -1.0)

    def ends_agree(draw: Draw):
        """Of all sequences the first and the last token have one position each, those between others."""
        drawn = family(normal, rotations)(draw)
        positions = drawn["positions"]
        positions[:, 0], positions[:, -1] = 1, draw.size["P"] - 1
        return drawn

    def row_scales(draw: Draw):
        """Rows of very different size: those of another position are far off."""
        scale = torch.exp2(torch.arange(draw.size["P"], dtype=torch.float64) % 7 - 3)[:, None]
        return _angles(draw).cos() * scale, _angles(draw).sin() * scale

    def beyond_largest_of(draw: Draw):
        """Elements near the largest number and tables of numbers above 1, as those of scaled contexts are; products
        with the sine stay below it."""
        drawn = family(normal, rotations)(draw)
        for name in (q, k):
            sign = draw.integers(draw.shape(name), 0, 2) * 2 - 1
            drawn[name] = sign * draw.of_largest(name, 0.75, 1.0)
        return {
            **drawn,
            "cos": draw.uniform(draw.shape("cos"), 3.0, 4.0),
            "sin": draw.uniform(draw.shape("sin"), 0.0, 0.5),
        }

    def quarter_turns(draw: Draw):
        """Angles that are multiples of 90 degrees: of small integers the answer is exact."""
        turns = draw.integers(draw.shape("cos"), 0, 4)
        return (turns == 0).double() - (turns == 2).double(), (turns == 1).double() - (turns == 3).double()

    def normal(draw: Draw, shape):
        """The last dimension counts more: a lost tail."""
        x = draw.normal(shape)
        if x.numel():
            x[..., -1] += 3
        return x

    def special(draw: Draw, shape):
        """NaN and infinities, in the first and second halves of pairs, and where nothing is turned."""
        x = draw.normal(shape)
        x[-1, -1, -1, 0], x[-1, -1, -1, -1], x[0, 0, 0, draw.size["half"]] = torch.nan, -torch.inf, torch.inf
        return x

    def valid(case: Case) -> bool:
        tables = dict(case.dtypes)
        if tables.get("cos") != tables.get("sin"):
            return False
        if case.values == "special" and case.layout[q] in layouts.BROADCASTS:
            return False
        return case.filled or case.values == "normal"

    def elements(size) -> int:
        return size["B"] * size["S"] * size["D"] * (size["Hq"] + size["Hkv"])

    return Contract(
        operands={
            q: Operand("B Hq S D", layouts.HEADS),
            k: Operand("B Hkv S D", K),
            "cos": Operand("P half", TABLE, dtypes=(torch.float32, None)),
            "sin": Operand("P half", TABLE, dtypes=(torch.float32, None)),
            "positions": Operand(
                "B S",
                ("contiguous", "none", *layouts.TABLE[1:], "broadcast"),
                dtypes=(torch.int64, torch.int32),
                indexes="P",
            ),
        },
        outputs={returned[0]: Output("B Hq S D"), returned[1]: Output("B Hkv S D")},
        sizes=_sizes(SIZES),
        regular=Regular(_sizes(REGULAR), {"interleaved": (False,)}),
        beyond_grid=_sizes(BEYOND_GRID),
        large=LARGE,
        also={
            # without positions, tables that hold those of all sequences one after another
            "wide_heads": Also(
                dict(zip(LETTERS, (2, 3, 2, 3, 264, 130, 9), strict=True)),
                layouts={"positions": "none"},
                dtype="float16",
            ),
            **beyond_largest(_sizes(SIZES)[0], beyond_largest_of),
            "ends_agree": Also(dict(zip(LETTERS, (3, 2, 1, 6, 16, 8, 16), strict=True)), ends_agree),
            "nothing_turned": Also(dict(zip(LETTERS, (2, 3, 2, 3, 8, 0, 5), strict=True))),
        },
        int64_index=Int64Index(
            dict(zip(LETTERS, (2**14 + 3, 16, 1, 64, 128, 64, 64), strict=True)), rows={q: 0, k: 0, "positions": 0}
        ),
        values={
            "normal": family(normal, rotations),
            "any_tables": family(normal, any_tables),
            "row_scales": family(normal, row_scales),
            "quarter_turns": family(lambda draw, shape: draw.integers(shape, -8, 9), quarter_turns),
            "special": family(special, any_tables),
        },
        params={"interleaved": (False, True)},
        valid=valid,
        expect=expect,
        exact={"quarter_turns": list(returned)},
        flops=lambda size, params: 6 * elements(size),
        bytes=lambda size, params, item: 2 * elements(size) * item + 8 * size["P"] * size["half"],
        invalid=_invalid(q, k),
        properties=_properties(q, k, turn),
        **more,
    )


def _spoilt(name: str, how: str, change: Callable[[Any], Any], error: type[Exception]) -> Invalid:
    return Invalid(f"{name} {how}", lambda a: {**a, name: change(a[name])}, error, rf"\b{name}\b")


def _invalid(q: str, k: str) -> list[Invalid]:
    return [
        _spoilt(q, "is 3-D", lambda x: x[0], ValueError),
        _spoilt(k, "has another S", lambda x: x[:, :, 1:], ValueError),
        _spoilt(k, "has another D", lambda x: x[..., 1:], ValueError),
        _spoilt(k, "has another dtype", lambda x: x.bfloat16(), TypeError),
        _spoilt(q, "is float64", lambda x: x.double(), TypeError),
        _spoilt(q, "is no tensor", lambda x: x.tolist(), TypeError),
        _spoilt("cos", "has a third dtype", lambda t: t.bfloat16(), TypeError),
        _spoilt("cos", "is None", lambda t: None, TypeError),
        _spoilt("sin", "has one row less", lambda t: t[1:], ValueError),
        _spoilt("sin", "is elsewhere", lambda t: t.to("meta"), ValueError),
        _spoilt("positions", "has another S", lambda t: t[:, 1:], ValueError),
        _spoilt("positions", "is 1-D", lambda t: t[0], ValueError),
        _spoilt("positions", "is of floats", lambda t: t.float(), TypeError),
        Invalid(
            "more pairs than dimensions",
            lambda a: {**a, **{name: torch.cat([a[name]] * 5, 1) for name in ("cos", "sin")}},
            ValueError,
            r"\bcos\b",
        ),
        Invalid(
            "tables too short without positions",
            lambda a: {**a, "positions": None, "cos": a["cos"][:2], "sin": a["sin"][:2]},
            ValueError,
            r"\bcos\b",
        ),
    ]


def _properties(q: str, k: str, turn: int) -> list[Property]:
    def quarters(arguments, case) -> dict[str, Any]:
        """The same call with {0, 1} for elements and multiples of 90 degrees for angles: everything is exact."""
        turns = torch.randint(0, 4, arguments["cos"].shape, generator=case.rng("turns")).to(arguments["cos"].device)
        cos, sin = (turns == 0).float() - (turns == 2).float(), (turns == 1).float() - (turns == 3).float()
        tables = {"cos": cos.to(arguments["cos"].dtype), "sin": sin.to(arguments["sin"].dtype)}
        return {**arguments, **{name: (arguments[name] > 0).to(arguments[name].dtype) for name in (q, k)}, **tables}

    def back(arguments, turned):
        return {**arguments, "sin": -arguments["sin"], q: turned[0], k: turned[1]}

    def undone(call, arguments, outputs, case):
        plain = quarters(arguments, case)
        again = call(**back(plain, call(**plain)))
        same = all(torch.equal(x, plain[name]) for x, name in zip(again, (q, k), strict=True))
        return None if same else "turned back by the same multiples of 90 degrees, elements are not what they were"

    def unturned(call, arguments, outputs, case):
        still = call(
            **{**arguments, "cos": torch.ones_like(arguments["cos"]), "sin": torch.zeros_like(arguments["sin"])}
        )
        same = all(torch.equal(x, arguments[name]) for x, name in zip(still, (q, k), strict=True))
        return None if same else "an angle of 0 changes elements"

    def rest(call, arguments, outputs, case):
        first = 2 * arguments["cos"].shape[1]
        same = all(torch.equal(x[..., first:], arguments[n][..., first:]) for x, n in zip(outputs, (q, k), strict=True))
        return None if same else f"dimensions from {first} on, which belong to no pair, change"

    def doubles(call, arguments, outputs, case):
        twice = call(**{**arguments, q: 2 * arguments[q], k: 2 * arguments[k]})
        tiny = math.sqrt(torch.finfo(case.torch_dtype).tiny)
        for once, two in zip(outputs, twice, strict=True):
            if bool(((two != 2 * once) & (once.abs() > tiny)).any()):
                return "twice the elements are not turned to twice what they are turned to"
        return None

    def counted(call, arguments, outputs, case):
        B, _, S, _ = arguments[q].shape
        count = torch.arange(S, device=arguments[q].device).expand(B, S).contiguous()
        given, none = call(**{**arguments, "positions": count}), call(**{**arguments, "positions": None})
        same = all(torch.equal(a, b) for a, b in zip(given, none, strict=True))
        return None if same else "without positions another answer comes than with 0, 1, 2, ..."

    return [
        Property("turning back undoes it", undone),
        adjoint(q, k, back=lambda call, given, ys: call(**back(given, ys)), exact=quarters),
        Property("an angle of 0 changes nothing", unturned),
        Property("what belongs to no pair stays", rest),
        Property("doubles", doubles),
        Property("positions are counted where none are given", counted, bitwise=True),
    ]


def eager(q, k, cos, sin, positions, interleaved):
    """As it is usually written with torch's operations, for baselines: q and k turned."""
    cos, sin = (t.to(q.dtype)[positions][:, None] for t in (cos, sin))
    if interleaved:
        cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
    else:
        cos, sin = (torch.cat([t, t], -1) for t in (cos, sin))
    dim = cos.shape[-1]

    def turned(x):
        head, rest = x[..., :dim], x[..., dim:]
        if interleaved:
            other = torch.stack([-head[..., 1::2], head[..., ::2]], -1).flatten(-2)
        else:
            other = torch.cat([-head[..., dim // 2 :], head[..., : dim // 2]], -1)
        return torch.cat([head * cos + other * sin, rest], -1)

    return turned(q), turned(k)
