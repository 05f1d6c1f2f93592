"""What is wrong, and right, with rope and with its backward alike: the same but for the sign of sin, `turn`."""

from collections.abc import Callable
from typing import Any

import torch

from touchstone.conformance.faults import ALL, Kernel, plant

HALF = ("float16", "bfloat16")
F32 = ("float32",)


def pairs(x: torch.Tensor, half: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the two sides of the pairs are."""
    if interleaved:
        return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    return slice(half), slice(half, 2 * half)


def rows(table: torch.Tensor, positions: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The rows of a table in float32 for the tokens of x, (1 or B, 1, S, R/2)."""
    chosen = table[: x.shape[2]][None] if positions is None else table[positions.long()]
    return chosen.float()[:, None]


def turned(x, c, s, interleaved, *, pairs=pairs, combine=None, rest=lambda rest: rest):
    """x turned by c and s, which broadcast with its pairs, in float32; the keywords are what mutants change."""
    half, y = c.shape[-1], x.float().contiguous().clone()
    first, second = pairs(x, half, interleaved)
    one, other = x[..., first].float(), x[..., second].float()
    y[..., 2 * half :] = rest(y[..., 2 * half :])
    y[..., first], y[..., second] = (combine or plain)(one, other, c, s)
    return y.to(x.dtype)


def plain(one, other, c, s):
    return one * c - other * s, other * c + one * s


def op(
    turn: int, *, of_k: Callable[..., Any] | None = None, rows=rows, tables=lambda cos, sin: (cos, sin), **parts: Any
):
    """The op with something changed: which rows of the tables are taken, the tables themselves, or parts of `turned`.

    `of_k`: another function of x, c, s and interleaved for k."""

    def fn(q, k, cos, sin, positions, *, interleaved=False):
        cos, sin = tables(cos, sin)
        found = []
        for x, one in ((q, None), (k, of_k)):
            c, s = rows(cos, positions, x), turn * rows(sin, positions, x)
            found.append((one or turned)(x, c, s, interleaved, **({} if one else parts)))
        return tuple(found)

    return fn


def _pairs_of_whole_head(x, half, interleaved):
    """Their second sides half a head away."""
    middle = x.shape[-1] // 2
    if interleaved:
        return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    return slice(half), slice(middle, middle + half)


def _rounded(dtype: torch.dtype) -> Callable[..., Any]:
    def combine(one, other, c, s):
        def low(t):
            return t.to(dtype).float()

        return low(one * c) - low(other * s), low(other * c) + low(one * s)

    return combine


def _overwritten(one, other, c, s):
    first = one * c - other * s
    return first, other * c + first * s


def _clipped(positions, table):
    return (positions.long() + 1).clamp(max=table.shape[0] - 1)


def _next(table, positions, x):
    given = torch.arange(x.shape[2])[None] if positions is None else positions
    return table[_clipped(given, table)].float()[:, None]


def _of_token(table, positions, x):
    return rows(table, None, x)


def _of_batch_0(table, positions, x):
    return rows(table, None if positions is None else positions[:1], x)


def _of_sequence_start(table, positions, x):
    """The first position, and counted from there."""
    if positions is None or not positions.numel():
        return rows(table, positions, x)
    counted = positions.long()[:, :1] + torch.arange(x.shape[2])
    return table[counted.clamp(max=table.shape[0] - 1)].float()[:, None]


def _low_byte(table, positions, x):
    return rows(table, None if positions is None else positions.long() % 4, x)


def _signed(bits: int) -> Callable[..., Any]:
    """Rows of positions that are kept in so many bits, the first of which is their sign."""

    def chosen(table, positions, x):
        if positions is None:
            return rows(table, positions, x)
        kept = (positions.long() + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        return table[kept.clamp(-len(table), len(table) - 1)].float()[:, None]

    return chosen


def _off_by_a_token(x, c, s, interleaved):
    y = turned(x, c, s, interleaved)
    return y.roll(1, 2) if x.shape[2] > 1 else y * 0


# name -> kind, what is wrong, the changed parts, the dtypes in which it is
WRONG: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "sine_forgotten": (
        "formula",
        "only the cosines are multiplied with",
        {"combine": lambda a, b, c, s: (a * c, b * c)},
        ALL,
    ),
    "second_sine_negated": (
        "formula",
        "the sine has the same sign on both sides of a pair",
        {"combine": lambda a, b, c, s: (a * c - b * s, b * c - a * s)},
        ALL,
    ),
    "sides_change_places": (
        "axis",
        "the results of the two sides of a pair change places",
        {"combine": lambda a, b, c, s: plain(a, b, c, s)[::-1]},
        ALL,
    ),
    "tables_change_places": ("formula", "cos and sin change places", {"tables": lambda cos, sin: (sin, cos)}, ALL),
    "overwritten_first": (
        "race",
        "it is turned in place, and the second side of a pair sees the first one's result",
        {"combine": _overwritten},
        ALL,
    ),
    "pairs_of_whole_head": (
        "axis",
        "the sides of a pair are D/2 apart, also where fewer than D dimensions are turned",
        {"pairs": _pairs_of_whole_head},
        ALL,
    ),
    "always_interleaved": (
        "parameter",
        "pairs are neighbours whatever is asked for",
        {"pairs": lambda x, half, interleaved: pairs(x, half, True)},
        ALL,
    ),
    "rest_is_zero": ("unwritten", "dimensions that belong to no pair become 0", {"rest": torch.zeros_like}, ALL),
    "rest_is_scaled": (
        "scale",
        "dimensions that belong to no pair are 0.8 % too large",
        {"rest": lambda rest: rest * (1 + 2.0**-7)},
        ALL,
    ),
    "positions_ignored": ("parameter", "tokens are counted, and positions are not read", {"rows": _of_token}, ALL),
    "position_of_next": ("axis", "the position is that of the next token", {"rows": _next}, ALL),
    "positions_of_batch_0": ("axis", "every sequence has the positions of the first", {"rows": _of_batch_0}, ALL),
    "positions_counted_on": (
        "parameter",
        "the first position of a sequence is read, and the others counted from there",
        {"rows": _of_sequence_start},
        ALL,
    ),
    "positions_of_two_bits": ("offset", "positions are taken modulo 4", {"rows": _low_byte}, ALL),
    "positions_of_8_bits": ("offset", "positions are kept in 8 bits", {"rows": _signed(8)}, ALL),
    "positions_of_16_bits": ("offset", "positions are kept in 16 bits", {"rows": _signed(16)}, ALL),
    "tables_in_bf16": (
        "precision",
        "the tables are rounded to bfloat16",
        {"tables": lambda cos, sin: (cos.bfloat16().to(cos.dtype), sin.bfloat16().to(sin.dtype))},
        ALL,
    ),
    "sine_from_cosine": (
        "formula",
        "the sine is the root of 1 less the square of the cosine",
        {"tables": lambda cos, sin: (cos, (1 - cos.float().square()).clamp(min=0).sqrt().to(sin.dtype))},
        ALL,
    ),
    "products_in_bf16": (
        "precision",
        "products are rounded to bfloat16 before they are added",
        {"combine": _rounded(torch.bfloat16)},
        ("float32", "float16"),
    ),
    "k_of_another_token": ("heads", "k's results are those of the token before", {"of_k": _off_by_a_token}, ALL),
    "k_stays": ("heads", "k is returned as it was", {"of_k": lambda x, c, s, interleaved: x.contiguous().clone()}, ALL),
}


def _library(turn: int):
    """As Hugging Face has it, with tables of float32."""

    def fn(q, k, cos, sin, positions, *, interleaved=False):
        def full(table, x):
            chosen = rows(table, positions, x)
            return chosen.repeat_interleave(2, -1) if interleaved else torch.cat([chosen, chosen], -1)

        def one(x):
            c, s = full(cos, x), turn * full(sin, x)
            head, rest = x[..., : c.shape[-1]].float(), x[..., c.shape[-1] :]
            if interleaved:
                other = torch.stack([-head[..., 1::2], head[..., ::2]], -1).flatten(-2)
            else:
                left, right = head.chunk(2, -1)
                other = torch.cat([-right, left], -1)
            return torch.cat([(head * c + other * s).to(x.dtype), rest], -1).contiguous()

        return one(q), one(k)

    return fn


def _in_float64(one, other, c, s):
    return tuple(side.float() for side in plain(one.double(), other.double(), c.double(), s.double()))


def _in_dtype(turn: int):
    """Products rounded to the dtype of the tables, where the tables have the dtype of q and k."""

    def fn(q, k, cos, sin, positions, *, interleaved=False):
        combine = _rounded(q.dtype) if cos.dtype == q.dtype else plain
        return op(turn, combine=combine)(q, k, cos, sin, positions, interleaved=interleaved)

    return fn


def plant_turned(namespace: dict[str, Any], turn: int) -> None:
    """Plant them in a module's `namespace`."""
    good = {
        "library": ("rotate_half and a product with whole rows, in float32", _library(turn)),
        "in_float64": ("products and sums in float64", op(turn, combine=_in_float64)),
        "pair_by_pair": ("both sides of the pairs at once, in float32", op(turn)),
        "in_dtype": ("products rounded to 16 bits, as eager code has them", _in_dtype(turn)),
    }
    for name, (about, fn) in good.items():
        plant(namespace, name, fn, about, "known-good")
    for name, (kind, about, parts, dtypes) in WRONG.items():
        plant(namespace, name, op(turn, **parts), about, kind, dtypes=dtypes)
    plant(namespace, "sign_of_sine", op(-turn), "it turns the other way: the sine has the wrong sign", "formula")


# what kernels in several languages have in common: what is wrong with them, and what is found first
KERNELS = {
    "staged": Kernel("known-good", "a block keeps a head in shared memory, a thread an element"),
    "no_barrier": Kernel(
        "race",
        "no barrier between filling the head and reading partners: a thread reads what another has yet to write",
        "UninitialisedShared",
    ),
    "partner_of_whole_head": Kernel(
        "axis", "partners are D/2 apart, also where fewer dimensions are turned", "values: |property: |OutOfBounds"
    ),
    "rest_unwritten": Kernel("unwritten", "dimensions that belong to no pair are not written", "values: |property: "),
    "sine_of_first_side": Kernel("formula", "the sine has the same sign on both sides", "values: |property: "),
    "stride_of_table_ignored": Kernel("strides", "the stride between the columns of sin is taken to be 1", "values: "),
    "heads_of_q": Kernel(
        "heads", "k's heads are counted as those of q are, which are more", "values: |property: |OutOfBounds"
    ),
    "positions_without_stride": Kernel(
        "strides", "positions are read as if they were contiguous", "values: |OutOfBounds"
    ),
}
