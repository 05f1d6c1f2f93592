"""What the mutants and known-good kernels of the row-wise ops share: how a kernel loads and stores, and right and wrong
row sums.

A sum is `total(t, dim=-1)`: along `dim`, which is kept with length 1.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from touchstone.conformance.faults import ALL, plant

F32, F16, BF16 = ("float32",), ("float16",), ("bfloat16",)
HALF = F16 + BF16

Total = Callable[..., torch.Tensor]


class Flaw(NamedTuple):
    """A wrong `part`, to be built into an op. `about` completes "equals the reference, but ..."."""

    kind: str
    about: str
    part: Callable[..., Any]
    dtypes: Sequence[str] = ALL  # those in which it is wrong


def wide_load(t: torch.Tensor) -> torch.Tensor:
    return t.float().contiguous()


def in_float32(
    compute: Callable[..., Any],
    *,
    load: Callable[[torch.Tensor], torch.Tensor] = wide_load,
    store: Callable[[torch.Tensor, torch.dtype], torch.Tensor] = torch.Tensor.to,
    wide: Sequence[int] = (),
) -> Callable[..., Any]:
    """`compute` as most kernels do it: operands are loaded as float32, outputs stored in the dtype of the first
    operand.

    Outputs whose index is in `wide` stay float32.
    """

    @functools.wraps(compute)
    def call(*operands, **named):
        dtype = operands[0].dtype
        loaded = [None if t is None else load(t) for t in operands]
        named = {name: wide_load(v) if isinstance(v, torch.Tensor) else v for name, v in named.items()}
        outputs = compute(*loaded, **named)
        if not isinstance(outputs, tuple):
            return store(outputs, dtype)
        return tuple(t if i in wide else store(t, dtype) for i, t in enumerate(outputs))

    return call


def plant_flaws(
    namespace: dict[str, Any], flaws: Mapping[str, Flaw], build: Callable[..., Any], wide: Sequence[int] = ()
) -> None:
    """Plant `build(part)`, a function of the op on float32 tensors, for the part of each flaw."""
    for name, flaw in flaws.items():
        plant(namespace, name, in_float32(build(flaw.part), wide=wide), flaw.about, flaw.kind, dtypes=flaw.dtypes)


def plant_sums(
    namespace: dict[str, Any], sums: Mapping[str, Total], build: Callable[..., Any], wide: Sequence[int] = ()
) -> None:
    """Add the known-good kernels `build(total)`, functions of the op on float32 tensors."""
    for name, total in sums.items():
        about = f"sums by {name.replace('_', ' ')}"
        plant(namespace, f"sums_by_{name}", in_float32(build(total), wide=wide), about, "known-good")


def plant_loads_and_stores(namespace: dict[str, Any], right: Callable[..., Any], wide: Sequence[int] = ()) -> None:
    """Plant what `right`, the op on float32 tensors, becomes with wrong loads or stores."""
    for name, flaw in LOADS.items():
        fn = in_float32(right, load=flaw.part, wide=wide)
        plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)
    for name, flaw in STORES.items():
        fn = in_float32(right, store=flaw.part, wide=wide)
        plant(namespace, name, fn, flaw.about, flaw.kind, dtypes=flaw.dtypes)


def tf32(t: torch.Tensor) -> torch.Tensor:
    """`t`, float32, rounded to 10 bits of mantissa, ties away from 0."""
    rounded = ((t.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(t), rounded, t)


def through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype).float()


def cut(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`y`, float32, in `dtype` with the bits that do not fit cut off."""
    near = y.to(dtype)
    if dtype is torch.float32:
        return near
    beyond = (near.float().abs() > y.abs()) & torch.isfinite(near)
    return torch.where(beyond, (near.view(torch.int16) - 1).view(dtype), near)


def _left_of(y: torch.Tensor, column: int) -> torch.Tensor:
    return F.pad(y[..., :column], (0, y.shape[-1] - column))


LOADS = {
    "tf32_inputs": Flaw("precision", "its inputs are rounded to TF32", lambda t: tf32(wide_load(t)), F32),
    "bf16_inputs": Flaw(
        "precision", "its inputs are rounded to bfloat16", lambda t: through(torch.bfloat16)(wide_load(t)), F32 + F16
    ),
}
STORES = {
    "result_through_fp16": Flaw(
        "precision", "its results pass through float16", lambda y, dtype: y.half().to(dtype), F32
    ),
    "result_through_bf16": Flaw(
        "precision", "its results pass through bfloat16", lambda y, dtype: y.bfloat16().to(dtype), F32 + F16
    ),
    "result_truncated": Flaw("precision", "its results are cut instead of rounded", cut, HALF),
    "ends_at_column_1024": Flaw(
        "tail", "its results are 0 from column 1024 on", lambda y, dtype: _left_of(y, min(y.shape[-1], 1024)).to(dtype)
    ),
    "vector_tail_not_stored": Flaw(
        "tail",
        "its results are 0 past a multiple of 4 columns",
        lambda y, dtype: _left_of(y, y.shape[-1] // 4 * 4).to(dtype),
    ),
}


def row_sum(t: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return t.sum(dim, keepdim=True)


def _along_last(function: Callable[[torch.Tensor], torch.Tensor]) -> Total:
    def total(t, dim=-1):
        return function(t.movedim(dim, -1)).unsqueeze(-1).movedim(-1, dim)

    return total


def lanes(count: int, dtype: torch.dtype = torch.float32, reverse: bool = False) -> Total:
    """`count` lanes that each add up their columns in `dtype`, then a tree over the lanes."""

    def total(t):
        t = t.flip(-1) if reverse else t
        least = min(count, 1 << max(t.shape[-1] - 1, 0).bit_length())  # the other lanes have nothing to add
        t = F.pad(t, (0, -t.shape[-1] % least)).to(dtype).unflatten(-1, (-1, least))
        if dtype is torch.float32:
            running = in_sequence(t, -2)
        else:
            running = t.new_zeros((*t.shape[:-2], least))
            for part in t.unbind(-2):
                running = running + part
        while running.shape[-1] > 1:
            left, right = running.chunk(2, -1)
            running = left + right
        return running[..., 0].float()

    return _along_last(total)


def in_sequence(t: torch.Tensor, dim: int = -1, by: np.ufunc = np.add) -> torch.Tensor:
    """What lies along `dim`, in float32, one after another, added up or combined otherwise; of nothing it is 0."""
    if not t.shape[dim]:
        return t.sum(dim)
    with np.errstate(all="ignore"):
        found = by.accumulate(t.detach().numpy(), axis=dim)  # each from the one before
    return torch.from_numpy(found).select(dim, -1).clone()


def _kahan(t: torch.Tensor) -> torch.Tensor:
    running = lost = t.new_zeros(t.shape[:-1])
    for column in F.pad(t, (0, -t.shape[-1] % 64)).unflatten(-1, (-1, 64)).sum(-1).unbind(-1):
        term = column - lost
        new = running + term
        lost = (new - running) - term
        running = new
    return running


def first(columns: Callable[[int], int]) -> Total:
    """The sum of the first `columns(n)` of n columns only."""
    return _along_last(lambda t: t[..., : columns(t.shape[-1])].sum(-1))


def _last_tile(t: torch.Tensor) -> torch.Tensor:
    return t[..., (max(t.shape[-1], 1) - 1) // 64 * 64 :].sum(-1)


def _first_tile_twice(t: torch.Tensor) -> torch.Tensor:
    return t.sum(-1) + (t[..., :64].sum(-1) if t.shape[-1] > 64 else 0)


def _first_warp(t: torch.Tensor) -> torch.Tensor:
    return F.pad(t, (0, -t.shape[-1] % 128)).unflatten(-1, (-1, 128))[..., :32].sum((-1, -2))


def _every_second_tile(t: torch.Tensor) -> torch.Tensor:
    tiles = F.pad(t, (0, -t.shape[-1] % 16)).unflatten(-1, (-1, 16)).sum(-1)
    return tiles[..., ::2].sum(-1)


RIGHT_SUMS: dict[str, Total] = {
    "one_lane_in_sequence": _along_last(in_sequence),
    "8_lanes_from_the_end": lanes(8, reverse=True),
    "32_lanes": lanes(32),
    "256_lanes": lanes(256),
}
COMPENSATED_SUM = _along_last(_kahan)
LAST_TILE = _along_last(_last_tile)
FIRST_TILE_TWICE = _along_last(_first_tile_twice)
LOST_UPDATES = _along_last(_every_second_tile)
SHORT_SUMS = {
    "last_column_lost": Flaw("tail", "its sums leave out the last column", first(lambda n: max(n - 1, 0))),
    "partial_tile_dropped": Flaw(
        "tail", "its sums leave out the last partial tile of 32", first(lambda n: n // 32 * 32)
    ),
    "first_1024_columns": Flaw("tail", "its sums end at column 1024", first(lambda n: min(n, 1024))),
    "first_4096_columns": Flaw("tail", "its sums end at column 4096", first(lambda n: min(n, 4096))),
    "first_8192_columns": Flaw("tail", "its sums end at column 8192", first(lambda n: min(n, 8192))),
    "last_tile_overwrites": Flaw(
        "accumulator", "its sums keep the last tile of 64 only: `acc =` for `acc +=`", LAST_TILE
    ),
    "first_tile_twice": Flaw(
        "accumulator", "its sums start from the first tile of 64 and add it again", FIRST_TILE_TWICE
    ),
    "first_warp_only": Flaw(
        "race", "its sums lack what 3 of 4 warps hold: 96 of every 128 columns", _along_last(_first_warp)
    ),
}
NARROW_SUMS = {
    "fp16_sum": Flaw("precision", "its sums run in float16", lanes(32, torch.float16)),
    "bf16_sum": Flaw("precision", "its sums run in bfloat16", lanes(32, torch.bfloat16)),
}
WRONG_SUMS = {**SHORT_SUMS, **NARROW_SUMS}


def top(x: torch.Tensor) -> torch.Tensor:
    """The maximum of each row, (rows, 1); NaN where one is NaN, 0 where there are no columns."""
    return x.amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((x.shape[0], 1))


def softmax(x, *, total=row_sum, top=top, exp=torch.exp):
    """(rows, cols) -> y (rows, cols); the keywords are what mutants change."""
    e = exp(x - top(x))
    return e / total(e)


def rescaled(total: torch.Tensor, m: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return total * torch.exp(m - new)


def online_statistics(
    x,
    tile=16,
    *,
    start=-math.inf,
    maximum=torch.maximum,
    top=top,
    rescale=rescaled,
    total=row_sum,
    guard=True,
    running=torch.float32,
):
    """m and l = Σ exp(x − m), (rows, 1) each, over tiles of columns; the keywords are what mutants change.

    `guard`: nothing is subtracted while m is −inf.
    """
    m, l = x.new_full((x.shape[0], 1), start), x.new_zeros((x.shape[0], 1))
    for part in x.split(tile, -1) if x.shape[-1] else ():
        new = maximum(m, top(part))
        shift = torch.where(torch.isneginf(new), 0.0, new) if guard else new
        l = (rescale(l, m, shift) + total(torch.exp(part - shift))).to(running).float()
        m = new
    return m, l


def finish(x: torch.Tensor, m: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """y (rows, cols) and lse (rows,) from the statistics of rows."""
    lse = torch.where(torch.isposinf(m), m, m + torch.log(l))
    return torch.exp(x - m) / l, lse[:, 0]
