"""What the contracts of ops on sequences of various lengths, one after another, share: the lengths, what is drawn for
each sequence, and a bound that is put together from those of the sequences.

Sizes are N, one more than there are sequences; Tq and Tk, the rows of q and of k; Sq and Sk, the longest sequences.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from touchstone.conformance.contracts import attention
from touchstone.conformance.contracts._attention import visible_pairs
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.contract import Also, Case, Draw, From, Regular

# of q and of k: both long, the one or the other or both without a row, in turn
TURNS = ((1.0, 0.0, 0.7, 0.01, 0.0), (1.0, 0.5, 1.0, 0.0, 0.0))
LAYOUTS = ("contiguous", "transposed", "sliced", "step", "interleaved", "offset")  # of (T, H, D)
OFFSETS = ("contiguous", "step", "offset")
BEHIND = "rows behind the last sequence"
# the first with no row behind the last sequence: far ones would be the last
SIZES = [
    dict(N=n, Tq=rows, Tk=keys, Sq=longest, Sk=longest_k, Hq=heads, Hkv=heads_kv, D=dim)
    for n, rows, keys, longest, longest_k, heads, heads_kv, dim in [
        (4, 16, 28, 9, 11, 4, 2, 16),
        (2, 1, 1, 1, 1, 1, 1, 64),
        (5, 70, 104, 33, 40, 2, 1, 40),
        (3, 131, 100, 65, 50, 1, 1, 24),
        (10, 150, 80, 129, 64, 1, 1, 8),
        (3, 8, 1045, 5, 1031, 2, 1, 16),
        (3, 1045, 8, 1031, 5, 2, 1, 16),
        (4, 5, 7, 0, 3, 2, 1, 8),
        (3, 4, 0, 2, 0, 1, 1, 16),
        (1, 3, 2, 1, 1, 2, 1, 16),
    ]
]
REGULAR = Regular(
    [
        dict(N=n, Tq=(n - 1) * seq, Tk=(n - 1) * seq, Sq=seq, Sk=seq, Hq=heads, Hkv=heads, D=dim)
        for n, seq, heads, dim in [(3, 64, 1, 64), (2, 128, 1, 64), (2, 64, 2, 128), (4, 64, 1, 64)]
    ],
    params={"causal": (False, True)},
)
OVER_TILES = dict(N=3, Tq=160, Tk=180, Sq=130, Sk=150, Hq=2, Hkv=1, D=8)
BEYOND_GRID = [
    dict(N=1032, Tq=2100, Tk=2100, Sq=3, Sk=5, Hq=1, Hkv=1, D=4),
    dict(N=2, Tq=1, Tk=3, Sq=1, Sk=3, Hq=69001, Hkv=1, D=2),
    dict(N=3, Tq=69002, Tk=6, Sq=34501, Sk=3, Hq=1, Hkv=1, D=4),
]
_WIDE = dict(N=4, Tq=5, Tk=60, Sq=2, Sk=25)
ALSO = {
    "groups": Also({**_WIDE, "Hq": 24, "Hkv": 2, "D": 96}, params={"causal": True}, dtype="float16"),
    "wide_heads": Also({**_WIDE, "Hq": 4, "Hkv": 2, "D": 160}, dtype="bfloat16"),
    # of three sequences the last has queries and no keys
    "no_keys_for_some": Also(dict(N=4, Tq=8, Tk=9, Sq=3, Sk=6, Hq=2, Hkv=1, D=16)),
    **attention.of_widths({**_WIDE, "Hq": 2, "Hkv": 1}, {**attention.WIDTHS, 80: "float32"}),
    "whole_tiles": Also(dict(N=2, Tq=512, Tk=512, Sq=512, Sk=512, Hq=1, Hkv=1, D=16), params={"causal": True}),
    # 1, none, 1, 1 and none: with max_q 1 a kernel may take a row for a sequence
    "one_query_each": Also(dict(N=6, Tq=4, Tk=36, Sq=1, Sk=12, Hq=4, Hkv=2, D=16)),
    # as many rows as keys, and longest sequences alike, but none of q is as long as the same one of k but the first
    "as_many_rows_as_keys": Also(dict(N=4, Tq=20, Tk=20, Sq=9, Sk=9, Hq=2, Hkv=1, D=16)),
    # of 66,030 keys the last sequence has those from 66,000 on
    "keys_beyond_16_bits": Also(dict(N=4, Tq=4, Tk=66030, Sq=2, Sk=44000, Hq=2, Hkv=1, D=8)),
    "keys_of_whole_tiles": Also(
        dict(N=2, Tq=2, Tk=512, Sq=2, Sk=512, Hq=2, Hkv=1, D=8), "growing_keys", {"scale": -0.3}
    ),
}
# of 33,030 keys the last sequence has those from 33,000 on
MANY_KEYS = dict(N=4, Tq=4, Tk=33030, Sq=2, Sk=22000, Hq=2, Hkv=1, D=8)
LOW_SCORES = dict(N=3, Tq=5, Tk=60, Sq=3, Sk=40, Hq=4, Hkv=2, D=16)
LARGE = [
    dict(N=n, Tq=rows, Tk=rows, Sq=longest, Sk=longest, Hq=16, Hkv=heads, D=128)
    for n, rows, longest, heads in [(9, 16384, 2048, 16), (17, 16384, 4096, 16), (65, 32768, 16384, 4)]
]
PARAMS = {
    "max_q": (From(lambda case: _at_least(case.size["Sq"])),),
    "max_k": (From(lambda case: _at_least(case.size["Sk"])),),
    "causal": (False, True),
    "scale": (None, 0.21, -0.3, 0.0),
}


def _at_least(longest: int) -> int:
    """1 for 1, else the next multiple of 8: more than the longest sequence has, at most sizes."""
    return longest if longest == 1 else -(-longest // 8) * 8


def lengths(size: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The rows of each sequence in q, and in k: all the longest where there is room for that, one the longest and the
    others 1 to 3 where there are many, else in `TURNS`, as far as the rows go."""
    of_q, of_k = (
        _of_one(size["N"] - 1, size[f"T{x}"], size[f"S{x}"], turn) for x, turn in zip("qk", TURNS, strict=True)
    )
    return of_q, of_k


def _of_one(number: int, total: int, longest: int, turns: Sequence[float]) -> list[int]:
    if total >= number * longest:
        return [longest] * number
    if number > 6:
        wanted = [longest if b == number // 2 else min(1 + b % 3, longest) for b in range(number)]
    else:  # an even number of them begins with one of no length
        wanted = [math.ceil(longest * turns[(b - (number % 2 == 0)) % len(turns)]) for b in range(number)]
    found, left = [], total
    for length in wanted:
        found.append(min(length, left))
        left -= found[-1]
    return found


def offsets(of_sequences: Sequence[int]) -> torch.Tensor:
    """Where each sequence begins, and the end of the last."""
    return torch.tensor([*accumulate(of_sequences, initial=0)], dtype=torch.float64)


def numbers(inputs: Mapping[str, torch.Tensor]) -> list[tuple[str, str, torch.Tensor]]:
    """How long the sequence of each row of q, and of k, is in q and in k."""
    found = []
    for axis, own in (("Tq", "q"), ("Tk", "k")):
        begin, end = inputs[f"cu_{own}"][:-1], inputs[f"cu_{own}"][1:]
        rows = torch.arange(len(inputs[own]), dtype=torch.float64)
        inside = (begin[:, None] <= rows) & (rows < end[:, None])
        for x in "qk":
            lengths_of = (inputs[f"cu_{x}"].diff()[:, None] * inside).sum(0)
            found.append((f"the sequence's length in {x}", axis, lengths_of.where(inside.any(0), math.nan)))
    return found


def unused(operand: str, cu: str) -> Callable[..., torch.Tensor]:
    """The rows of `operand`, (T, H, D) or (H, T), that lie behind the last sequence."""

    def garbage(inputs, params) -> torch.Tensor:
        x = inputs[operand]
        behind = torch.arange(x.shape[0 if x.ndim == 3 else 1]) >= inputs[cu][-1]
        return behind[:, None, None] if x.ndim == 3 else behind

    return garbage


@dataclass(frozen=True)
class _One:
    """What attention's families draw one sequence of `rows` and `keys` from, (1, H, S, D)."""

    draw: Draw
    rows: int
    keys: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.draw, name)

    def shape(self, operand: str) -> tuple[int, ...]:
        size, of_keys = self.draw.size, operand in ("k", "v")
        return (1, size["Hkv" if of_keys else "Hq"], self.keys if of_keys else self.rows, size["D"])


def packed(make: Callable[..., Mapping[str, torch.Tensor | None]]) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    """A family of attention's, operands by name, as one of sequences behind one another."""

    def family(draw: Draw) -> dict[str, torch.Tensor | None]:
        rows, keys = lengths(draw.size)
        every = [make(_One(draw, *of_one)) for of_one in zip(rows, keys, strict=True)]
        found: dict[str, torch.Tensor | None] = {"cu_q": offsets(rows), "cu_k": offsets(keys)}
        for name in draw.operands:
            if name not in found:
                found[name] = whole = torch.zeros(draw.shape(name), dtype=torch.float64)
                parts = [drawn[0].transpose(0, 1) for of_one in every if (drawn := of_one[name]) is not None]
                own = torch.cat([*parts, whole[:0]])
                whole[: len(own)] = own
        return found

    return family


def valid(case: Case) -> bool:
    """Attention's own conditions; where nobody sees a key, or each one only, layouts show nothing and one family will
    do."""
    size = case.size
    if size["N"] == 0:
        return False
    if 0 in size.values() or size["N"] == 1 or size["Sk"] == 1:
        return case.values == "normal" and case.contiguous
    if case.values == "positive":
        seen = size["Sk"] >= 64 and not case.param["causal"]
        return seen and case.dtype != "float32" and case.param["scale"] != 0
    return case.values != "growing_keys" or case.param["scale"] != 0


def pairs(size: Mapping[str, int], causal: bool) -> int:
    """The pairs of a query and a key that a head looks at."""
    return sum(visible_pairs(rows, keys, causal) for rows, keys in zip(*lengths(size), strict=True))


def alone(inputs: Mapping[str, Any], rows: slice, keys: slice) -> dict[str, torch.Tensor]:
    """One sequence's operands as attention's: (1, H, S, D)."""
    found = {}
    for name, x in inputs.items():
        if not name.startswith("cu_"):
            own = x[:, rows] if name == "lse" else x[keys if name in ("k", "v") else rows].transpose(0, 1)
            found[name] = own[None]
    return found


class Whole:
    """The bound of an output (T, H, D), or (H, T) of `dtype`, put together from those of the sequences."""

    def __init__(self, answer: torch.Tensor, dtype: torch.dtype | None = None):
        self.answer, self.dtype = answer, dtype
        names = ("terms", "condition", "rounding", "extra", "excused")
        self.bound = {name: torch.zeros_like(answer) for name in names}

    def put(self, rows: slice, found: Expected) -> None:
        """The bound of one sequence, (1, H, S, D) or (1, H, S)."""
        every = {"rounding": found.rounding, "extra": found.extra}
        if isinstance(found.excused, torch.Tensor):
            every["excused"] = found.excused
        for terms, condition in found.parts:
            every |= {"terms": terms, "condition": condition}
        for name, value in every.items():
            part = torch.as_tensor(value, dtype=self.answer.dtype).expand(found.answer.shape)[0]
            if self.answer.ndim == 3:
                self.bound[name][rows] = part.transpose(0, 1)
            else:
                self.bound[name][:, rows] = part

    def expected(self) -> Expected:
        terms, condition, rounding, extra, excused = self.bound.values()
        return Expected(
            self.answer,
            [(terms, condition)],
            rounding,
            extra,
            dtype=self.dtype,
            drift=0.2,
            excused=excused.bool() if excused.any() else None,
        )


def reordered(arguments: Mapping[str, Any], order: Sequence[int]) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """The arguments with their sequences in another order, and where each row of q and of k was."""
    cu = {x: arguments[f"cu_{x}"].tolist() for x in "qk"}
    index, moved = {}, dict(arguments)
    for x in "qk":
        every = [torch.arange(cu[x][b], cu[x][b + 1]) for b in order]
        total = len(arguments[x])
        index[x] = torch.cat([*every, torch.arange(cu[x][-1], total)]).to(arguments[x].device)
        begins = offsets([len(rows) for rows in every])
        moved[f"cu_{x}"] = begins.to(arguments[f"cu_{x}"])
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and not name.startswith("cu_"):
            rows = index["k" if name in ("k", "v") else "q"]
            moved[name] = value[:, rows] if name == "lse" else value[rows]
    return moved, index["q"], index["k"]


def turned(case: Case) -> list[int]:
    """The second sequence first, and so on, the first last: of three none lies where one of its length has been."""
    number = case.size["N"] - 1
    return [*range(1, number), 0]


def without_the_last(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """The arguments without a row or key in the last sequence, and how many rows of q and of k those before have: the
    others lie behind all sequences then."""
    ends, changed = {x: int(arguments[f"cu_{x}"][-2]) for x in "qk"}, dict(arguments)
    for x, end in ends.items():
        changed[f"cu_{x}"] = arguments[f"cu_{x}"].clone()
        changed[f"cu_{x}"][-1] = end
    return changed, ends


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far two outputs are from each other, in eps of the larger's largest element or 1."""
    if not torch.equal(found.isfinite(), wanted.isfinite()):
        return math.inf
    seen = wanted.isfinite()
    if not seen.any():
        return 0.0
    largest = max(1.0, wanted[seen].abs().max().item())
    return (found[seen] - wanted[seen]).abs().max().item() / largest / torch.finfo(wanted.dtype).eps


def family(make: Callable[..., Any]) -> Callable[[Draw], dict[str, torch.Tensor | None]]:
    """q, k and v of one of attention's families."""
    return packed(lambda one: dict(zip("qkv", make(one), strict=True)))


def positive(draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values near 1 and nearly equal scores: over many keys little but the rounding of o is left, and truncation
    shows."""
    q, k, v = attention.heads(draw)
    return q * 0.25, k * 0.25, v * 0.1 + 1


FAMILIES = {
    "normal": attention.heads,
    "growing_keys": attention.growing_keys,
    "large": attention.large,
    "shifted_negative": attention.shifted_negative,
    "cancelling": attention.cancelling,
    "positive": positive,
}
