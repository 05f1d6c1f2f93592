"""Wrong kernels of matmul: one block per tile through shared memory, and blocks that share k and add by atomics."""

from enum import IntEnum

import torch
from numba import cuda, float32, int32
from numba.cuda.types import float16

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.numba._launching import launch

_TILE = 16
_SPLITS = 3


class Fault(IntEnum):
    none = 0
    no_barrier_before_use = 1
    no_barrier_before_overwrite = 2
    early_return = 3
    barrier_in_branch = 4
    tile_overrun = 5
    unfilled = 6
    backwards = 7
    narrow = 8
    integer = 9
    whole_tiles = 10
    last_tile = 11
    store_unguarded = 12
    transposed_tile = 13
    plain_add = 14
    wrong_part = 15


@cuda.jit
def _tiled_kernel(a, b, c, across, fault):
    a_tile = cuda.shared.array((_TILE, _TILE), float32)
    b_tile = cuda.shared.array((_TILE, _TILE), float32)
    whole = cuda.local.array(1, int32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    col = cuda.blockIdx.x % across * _TILE + x
    row = cuda.blockIdx.x // across * _TILE + y
    inside = row < c.shape[0] and col < c.shape[1]
    if fault == Fault.early_return and not inside:
        return
    begin, end = 0, a.shape[1]
    if fault == Fault.whole_tiles:
        end = end // _TILE * _TILE
    if fault == Fault.backwards:
        begin = end - -(-end // _TILE) * _TILE
    whole[0] = 0
    total = float32(0)
    for start in range(begin, end, _TILE):
        if fault != Fault.unfilled or (row < c.shape[0] and start + x < end):
            a_tile[y, x] = float32(a[row, start + x]) if row < c.shape[0] and start + x < end else float32(0)
        if fault != Fault.unfilled or (start + y < end and col < c.shape[1]):
            b_tile[y, x] = float32(b[start + y, col]) if start + y < end and col < c.shape[1] else float32(0)
        if fault == Fault.barrier_in_branch:
            if inside:
                cuda.syncthreads()
        elif fault != Fault.no_barrier_before_use:
            cuda.syncthreads()
        if fault == Fault.last_tile:
            total = float32(0)
        for k in range(_TILE + 1 if fault == Fault.tile_overrun else _TILE):
            product = a_tile[y, k] * (b_tile[x, k] if fault == Fault.transposed_tile else b_tile[k, x])
            if fault == Fault.narrow:
                total = float32(float16(total + product))
            elif fault == Fault.integer:
                whole[0] += int32(product)
                total = float32(whole[0])
            else:
                total += product
        if fault != Fault.no_barrier_before_overwrite:
            cuda.syncthreads()
    if inside or (fault == Fault.store_unguarded and row < c.shape[0]):
        c[row, col] = total


def _tiled(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, _, cols = shapes("M K, K N", a=a, b=b)
    c = torch.empty((rows, cols), dtype=a.dtype, device=a.device)
    if c.numel():
        across, down = -(-cols // _TILE), -(-rows // _TILE)
        grid = max(rows // _TILE, 1) * across if fault == "whole_rows" else down * across
        launch(Fault, fault, _tiled_kernel, grid, (_TILE, _TILE), a, b, c, down if fault == "down" else across)
    return c


@mutant("race")
def no_barrier_before_use(a, b):
    """no barrier between filling the tiles and reading what other threads filled"""
    return _tiled(a, b, "no_barrier_before_use")


@mutant("race")
def no_barrier_before_overwrite(a, b):
    """no barrier between the last use of the tiles and filling them anew"""
    return _tiled(a, b, "no_barrier_before_overwrite")


@mutant("race")
def early_return(a, b):
    """threads outside the result return before the barriers of the others"""
    return _tiled(a, b, "early_return")


@mutant("race")
def barrier_in_branch(a, b):
    """only threads inside the result reach the first barrier"""
    return _tiled(a, b, "barrier_in_branch")


@mutant("bounds")
def tile_overrun(a, b):
    """the loop over a tile takes one step too many"""
    return _tiled(a, b, "tile_overrun")


@mutant("unwritten")
def tile_unfilled(a, b):
    """elements of a tile beyond the operand are not set to 0"""
    return _tiled(a, b, "unfilled")


@mutant("bounds")
def negative_index(a, b):
    """tiles of k end where k ends and the first begins below 0: Numba counts such an index from the other end"""
    return _tiled(a, b, "backwards")


@mutant("precision")
def accumulator_float16(a, b):
    """the accumulator is float16"""
    return _tiled(a, b, "narrow")


@mutant("precision")
def accumulator_int32(a, b):
    """products are added up in an array of int32, which cuts their fractions"""
    return _tiled(a, b, "integer")


@mutant("tail")
def k_tail_dropped(a, b):
    """the last tile of k is left out where it is not full"""
    return _tiled(a, b, "whole_tiles")


@mutant("accumulator")
def last_k_tile_only(a, b):
    """the sum starts anew with every tile of k"""
    return _tiled(a, b, "last_tile")


@mutant("bounds")
def store_unguarded(a, b):
    """the store asks for the row only: a tile at the right edge writes into the next row"""
    return _tiled(a, b, "store_unguarded")


@mutant("axis")
def tile_of_b_transposed(a, b):
    """the tile of b is read by columns, though it was written by rows"""
    return _tiled(a, b, "transposed_tile")


@mutant("axis")
def tiles_down_for_across(a, b):
    """blocks are numbered by the tiles of a column of the result instead of those of a row"""
    return _tiled(a, b, "down")


@mutant("tail")
def grid_of_whole_tiles(a, b):
    """the grid counts whole tiles of rows only: a last, shorter one is not written"""
    return _tiled(a, b, "whole_rows")


@cuda.jit
def _splits_kernel(a, b, total, fault):
    # One thread per element; blocks along the grid's third axis share k.
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    row, part = cuda.blockIdx.y, cuda.blockIdx.z
    if col >= total.shape[1]:
        return
    length = -(-a.shape[1] // cuda.gridDim.z)
    if fault == Fault.wrong_part:
        length = a.shape[1] // cuda.gridDim.z
    mine = float32(0)
    for k in range(part * length, min((part + 1) * length, a.shape[1])):
        mine += float32(a[row, k]) * float32(b[k, col])
    if fault == Fault.plain_add:
        total[row, col] += mine
    else:
        cuda.atomic.add(total, (row, col), mine)


@cuda.jit
def _rounded_kernel(total, c, fault):
    col = cuda.grid(1)
    if col < c.shape[1]:
        c[cuda.blockIdx.y, col] = total[cuda.blockIdx.y, col]


def _splits(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, _, cols = shapes("M K, K N", a=a, b=b)
    if rows > 65535:
        raise Unsupported(f"{rows} rows; a grid has 65535 blocks along y")
    c = torch.empty((rows, cols), dtype=a.dtype, device=a.device)
    if c.numel():
        allocate = torch.empty if fault == "empty" else torch.zeros
        total = allocate((rows, cols), dtype=torch.float32, device=a.device)
        across = -(-cols // 32)
        launch(Fault, fault, _splits_kernel, (across, rows, _SPLITS), 32, a, b, total)
        launch(Fault, fault, _rounded_kernel, (across, rows), 32, total, c)
    return c


@known_good(deterministic=False)
def splits(a, b):
    """blocks share k and add to the result by float32 atomics"""
    return _splits(a, b)


@mutant("race", deterministic=False)
def splits_add_without_atomic(a, b):
    """blocks that share k add to the same element by load and store: updates get lost"""
    return _splits(a, b, "plain_add")


@mutant("accumulator", deterministic=False)
def splits_add_to_empty(a, b):
    """blocks that share k add to memory that nothing has set to zero"""
    return _splits(a, b, "empty")


@mutant("tail", deterministic=False)
def splits_rounded_down(a, b):
    """the parts of k are rounded down, and what remains is left out"""
    return _splits(a, b, "wrong_part")
