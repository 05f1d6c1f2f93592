"""Mutants and known-good kernels of transpose(x): (rows, cols) -> (cols, rows)."""

import torch

from touchstone.conformance.faults import Kernel, known_good, mutant
from touchstone.conformance.faults._moved import TILE, plant_moved

EQUIVALENT = {"truncated": "nothing is rounded"}


@known_good
def library(x):
    "torch's own transpose, copied"
    return x.t().clone(memory_format=torch.contiguous_format)


@known_good
def columns(x):
    "one column after another becomes a row"
    return torch.stack([column.clone() for column in x.unbind(1)]) if x.shape[1] else x.new_empty(0, x.shape[0])


@known_good
def in_tiles(x):
    "tiles of 32 by 32"
    return _tiles(x)


def _tiles(x, rows=None, cols=None, inside=torch.t, place=lambda r, c: (c, r)):
    """Tiles of 32 by 32 of the first `rows` and `cols`; what no tile is stored to is 0."""
    y = x.new_zeros(x.shape[1], x.shape[0])
    for r in range(0, x.shape[0] if rows is None else rows, TILE):
        for c in range(0, x.shape[1] if cols is None else cols, TILE):
            tile = inside(x[r : r + TILE, c : c + TILE])
            down, across = place(r, c)
            target = y[down : down + TILE, across : across + TILE]
            height, width = min(len(target), len(tile)), min(target.shape[1], tile.shape[1])
            target[:height, :width] = tile[:height, :width]
    return y


plant_moved(globals(), torch.t)


@mutant("axis")
def not_transposed(x):
    "the elements keep their order, and only the shape is that of the transpose"
    return x.reshape(x.shape[1], x.shape[0]).clone()


@mutant("axis")
def inside_kept(x):
    "tiles of 32 by 32 change places, and what is inside one is not transposed"
    return _tiles(x, inside=lambda tile: tile)


@mutant("axis")
def tiles_in_place(x):
    "what is inside a tile of 32 by 32 is transposed, and the tiles do not change places"
    return _tiles(x, place=lambda r, c: (r, c))


@mutant("shapes")
def as_if_square(x):
    "only the square part is transposed: cols is taken for rows"
    y = x.new_zeros(x.shape[1], x.shape[0])
    side = min(x.shape)
    y[:side, :side] = x[:side, :side].t()
    return y


@mutant("shapes")
def pitch_of_x(x):
    "rows of the output begin cols elements apart, as those of x do, and what comes later overwrites what was there"
    rows, cols = x.shape
    y = x.new_zeros(rows * cols + rows)
    for c in range(min(rows, cols)):  # later ones begin behind the output
        y[c * cols : c * cols + rows] = x[:, c]
    return y[: rows * cols].reshape(cols, rows).clone()


@mutant("tail")
def whole_tiles_only(x):
    "the grid counts whole tiles of 32 by 32 only"
    return _tiles(x, rows=x.shape[0] // TILE * TILE, cols=x.shape[1] // TILE * TILE)


@mutant("axis")
def diagonal_wraps(x):
    "tiles are taken in a diagonal order that only a square number of them comes out of whole"
    y, count = x.new_zeros(x.shape[1], x.shape[0]), -(-x.shape[0] // TILE)
    for i in range(count):
        for j in range(-(-x.shape[1] // TILE)):
            r, c = i * TILE, (i + j) % count * TILE
            tile = x[r : r + TILE, c : c + TILE].t()
            if tile.numel():
                y[c : c + TILE, r : r + TILE] = tile
    return y


@mutant("axis")
def half_turned(x):
    "it is turned by a quarter instead of mirrored at the diagonal"
    return torch.rot90(x).contiguous()


@mutant("axis")
def rotated(x):
    "the columns come out in reverse order: the other diagonal"
    return x.flip(0, 1).t().contiguous()


@mutant("alias")
def a_view(x):
    "the transpose is a view of x, not a copy"
    return x.t()


# what kernels in several languages have in common: what is wrong with them, and what is found first
KERNELS = {
    "tiles": Kernel("known-good", "tiles of 8 by 8 go through shared memory"),
    "no_barrier": Kernel(
        "race",
        "no barrier between filling the tile and reading it: a thread reads what its neighbours have yet to write",
        "UninitialisedShared",
    ),
    "early_return": Kernel(
        "race", "threads outside x return before the barrier that the others wait at", "values: |DivergentBarrier"
    ),
    "tile_not_transposed": Kernel("axis", "the tile is read as it was written: tiles change places, elements do not"),
    "bounds_of_x": Kernel(
        "mask", "the store asks whether its place is inside x, not inside the transpose", "OutOfBounds|values: "
    ),
    "store_unguarded": Kernel("bounds", "the store does not ask whether its place is inside", "OutOfBounds"),
    "offset_int32": Kernel("offset", "row times row stride is a product of 32 bits, which wraps", "OutOfBounds"),
    "column_stride_ignored": Kernel(
        "strides", "the stride between the columns of x is taken to be 1", "values: |OutOfBounds"
    ),
    "grid_of_whole_tiles": Kernel(
        "tail", "the grid counts whole tiles only: what is beyond is not written", "values: |property: "
    ),
}
