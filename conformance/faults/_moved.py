"""Mutants of ops that only move data, made from the op itself: it is applied to the numbers of the elements of its
first operand, and what comes out says where every element of an output comes from.
"""

from collections.abc import Callable
from typing import Any

import torch

from touchstone.conformance.faults import ALL, plant

HALF = ("float16", "bfloat16")
TILE = 32

Places = torch.Tensor  # of each element of an output, the number of its element of the operand; -1 for 0


def places_of(right: Callable[..., Any], x: torch.Tensor, *others: Any, **params: Any) -> list[Places]:
    """Where the elements of the outputs of `right(x, ...)` come from."""
    numbers = torch.arange(1, 1 + x.numel(), dtype=torch.float64, device=x.device).reshape(x.shape)
    returned = right(numbers, *others, **params)
    return [y.long() - 1 for y in (returned if isinstance(returned, tuple) else (returned,))]


def taken(x: torch.Tensor, places: Places) -> torch.Tensor:
    """The elements of x at these places of its contiguous form, 0 at place -1."""
    flat = torch.cat([x.reshape(-1), x.new_zeros(1)])
    return flat[places.where(places >= 0, flat.numel() - 1)].contiguous()


def _from_the_one_before(places: Places, axis: int) -> Places:
    return torch.cat([places.narrow(axis, 0, max(places.shape[axis] - 1, 0)), places.narrow(axis, -2, 1)], axis)


def _last_row(places: Places) -> Places:
    return _from_the_one_before(places, 0) if places.ndim and places.shape[0] > 1 else places


def _last_column(places: Places) -> Places:
    return _from_the_one_before(places, -1) if places.ndim and places.shape[-1] > 1 else places


def _second_tile(axis: int) -> Callable[[Places], Places]:
    """Tiles of 32 along `axis`, of which the second is the first again."""

    def change(places: Places) -> Places:
        if not places.ndim or places.shape[axis] <= TILE:
            return places
        changed, count = places.clone(), min(places.shape[axis] - TILE, TILE)
        changed.narrow(axis, TILE, count).copy_(places.narrow(axis, 0, count))
        return changed

    return change


def _beyond(axis: int, unit: int) -> Callable[[Places], Places]:
    """0 past a multiple of `unit` along `axis`."""

    def change(places: Places) -> Places:
        changed = places.clone()
        if places.ndim:
            whole = places.shape[axis] // unit * unit
            changed.narrow(axis, whole, places.shape[axis] - whole).fill_(-1)
        return changed

    return change


def _modulo(number: int) -> Callable[[Places], Places]:
    return lambda places: places.where(places < 0, places % number)


def _pairs_swapped(places: Places) -> Places:
    if not places.ndim:
        return places
    even = places.shape[-1] // 2 * 2
    swapped = places[..., :even].unflatten(-1, (even // 2, 2)).flip(-1).flatten(-2)
    return torch.cat([swapped, places[..., even:]], -1)


# name -> kind, what is wrong, how the places change, in which dtypes
MISPLACED: dict[str, tuple[str, str, Callable[[Places], Places], tuple[str, ...]]] = {
    "last_row_from_the_one_before": ("tail", "the last row is that before it once more", _last_row, ALL),
    "last_column_from_the_one_before": ("tail", "the last column is that before it once more", _last_column, ALL),
    "second_tile_of_rows": ("axis", "the second tile of 32 rows is the first once more", _second_tile(0), ALL),
    "second_tile_of_columns": ("axis", "the second tile of 32 columns is the first once more", _second_tile(-1), ALL),
    "partial_tile_of_rows": ("tail", "rows past a multiple of 32 are 0", _beyond(0, TILE), ALL),
    "partial_tile_of_columns": ("tail", "columns past a multiple of 32 are 0", _beyond(-1, TILE), ALL),
    "vector_tail": ("tail", "columns past a multiple of 8 are 0", _beyond(-1, 8), ALL),
    "index_of_10_bits": ("offset", "indices of elements are taken modulo 1024", _modulo(2**10), ALL),
    "index_of_16_bits": ("offset", "indices of elements are taken modulo 65536", _modulo(2**16), ALL),
    "pairs_swapped": ("axis", "the two elements of 16 bits that share a word change places", _pairs_swapped, HALF),
}


def _flushed(y: torch.Tensor) -> torch.Tensor:
    return torch.where(y.abs() < torch.finfo(y.dtype).tiny, torch.zeros((), dtype=y.dtype), y)


# name -> kind, what is wrong, how the elements change
CHANGED: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "subnormals_flushed": ("special", "subnormal numbers become 0", _flushed),
    "negative_zero_lost": ("special", "0 is added, which makes -0 to 0", lambda y: y + 0.0),
    "infinities_clamped": (
        "special",
        "infinities become the largest finite numbers",
        lambda y: y.clamp(torch.finfo(y.dtype).min, torch.finfo(y.dtype).max),
    ),
    "nan_lost": ("special", "NaN becomes 0", lambda y: torch.where(y.isnan(), torch.zeros((), dtype=y.dtype), y)),
}


def _each(change: Callable[[torch.Tensor], torch.Tensor], outputs: list[torch.Tensor]) -> Any:
    changed = tuple(change(y) for y in outputs)
    return changed if len(changed) > 1 else changed[0]


def plant_moved(namespace: dict[str, Any], right: Callable[..., Any], without: tuple[str, ...] = ()) -> None:
    """Plant in a module's `namespace` what goes wrong alike in all ops that move the elements of their first operand,
    and a known-good kernel that takes them one list of places at a time. `right` is the op on torch tensors; `without`
    names what is no fault of it."""

    def misplaced(change: Callable[[Places], Places]) -> Callable[..., Any]:
        def fn(x, *others, **params):
            places = places_of(right, x, *others, **params)
            return _each(lambda y: taken(x, change(y)), places)

        return fn

    def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        def fn(x, *others, **params):
            places = places_of(right, x, *others, **params)
            return _each(lambda y: change(taken(x, y)).contiguous(), places)

        return fn

    plant(namespace, "by_places", misplaced(lambda places: places), "a gather from a list of places", "known-good")
    for name, (kind, about, move, dtypes) in MISPLACED.items():
        if name not in without:
            plant(namespace, name, misplaced(move), about, kind, dtypes=dtypes)
    for name, (kind, about, alter) in CHANGED.items():
        if name not in without:
            plant(namespace, name, changed(alter), about, kind)
