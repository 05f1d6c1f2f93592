"""Wrong kernels of matmul: one block per tile through shared memory, and blocks that share k and add by atomics."""

from enum import IntEnum

import torch
from numba import cuda, float32, int32
from numba.cuda.types import float16

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.matmul import KERNELS as SHARED
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
    tile_unfilled = 6
    negative_index = 7
    accumulator_float16 = 8
    accumulator_int32 = 9
    k_tail_dropped = 10
    last_k_tile_only = 11
    store_unguarded = 12
    tile_of_b_transposed = 13
    splits_add_without_atomic = 14
    splits_rounded_down = 15


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
    if fault == Fault.k_tail_dropped:
        end = end // _TILE * _TILE
    if fault == Fault.negative_index:
        begin = end - -(-end // _TILE) * _TILE
    whole[0] = 0
    total = float32(0)
    for start in range(begin, end, _TILE):
        if fault != Fault.tile_unfilled or (row < c.shape[0] and start + x < end):
            a_tile[y, x] = float32(a[row, start + x]) if row < c.shape[0] and start + x < end else float32(0)
        if fault != Fault.tile_unfilled or (start + y < end and col < c.shape[1]):
            b_tile[y, x] = float32(b[start + y, col]) if start + y < end and col < c.shape[1] else float32(0)
        if fault == Fault.barrier_in_branch:
            if inside:
                cuda.syncthreads()
        elif fault != Fault.no_barrier_before_use:
            cuda.syncthreads()
        if fault == Fault.last_k_tile_only:
            total = float32(0)
        for k in range(_TILE + 1 if fault == Fault.tile_overrun else _TILE):
            product = a_tile[y, k] * (b_tile[x, k] if fault == Fault.tile_of_b_transposed else b_tile[k, x])
            if fault == Fault.accumulator_float16:
                total = float32(float16(total + product))
            elif fault == Fault.accumulator_int32:
                whole[0] += int32(product)
                total = float32(whole[0])
            else:
                total += product
        if fault != Fault.no_barrier_before_overwrite:
            cuda.syncthreads()
    if inside or (fault == Fault.store_unguarded and row < c.shape[0]):
        c[row, col] = total


KERNELS = SHARED | {
    "no_barrier_before_use": Kernel(
        "race", "no barrier between filling the tiles and reading what other threads filled", "UninitialisedShared"
    ),
    "no_barrier_before_overwrite": Kernel("race", "no barrier between the last use of the tiles and filling them anew"),
    "early_return": Kernel(
        "race", "threads outside the result return before the barriers of the others", "UninitialisedShared"
    ),
    "barrier_in_branch": Kernel(
        "race", "only threads inside the result reach the first barrier", "UninitialisedShared"
    ),
    "tile_overrun": Kernel("bounds", "the loop over a tile takes one step too many", "OutOfBounds"),
    "tile_unfilled": Kernel(
        "unwritten", "elements of a tile beyond the operand are not set to 0", "UninitialisedShared"
    ),
    "negative_index": Kernel(
        "bounds",
        "tiles of k end where k ends and the first begins below 0: Numba counts such an index from the other end",
        "OutOfBounds",
    ),
    "accumulator_int32": Kernel("precision", "products are added up in an array of int32, which cuts their fractions"),
    "last_k_tile_only": Kernel("accumulator", "the sum starts anew with every tile of k"),
    "store_unguarded": Kernel(
        "bounds", "the store asks for the row only: a tile at the right edge writes into the next row", "OutOfBounds"
    ),
    "tile_of_b_transposed": Kernel("axis", "the tile of b is read by columns, though it was written by rows"),
    "tiles_down_for_across": Kernel(
        "axis", "blocks are numbered by the tiles of a column of the result instead of those of a row"
    ),
    "splits": Kernel("known-good", "blocks share k and add to the result by float32 atomics"),
    "splits_add_without_atomic": Kernel(
        "race", "blocks that share k add to the same element by load and store: updates get lost", "RaceCondition"
    ),
    "splits_add_to_empty": Kernel(
        "accumulator",
        "blocks that share k add to memory that nothing has set to zero",
        "values: |repeat: |under threads",
    ),
    "splits_rounded_down": Kernel("tail", "the parts of k are rounded down, and what remains is left out"),
}


def _tiled(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, _, cols = shapes("M K, K N", a=a, b=b)
    c = torch.empty((rows, cols), dtype=a.dtype, device=a.device)
    if c.numel():
        across, down = -(-cols // _TILE), -(-rows // _TILE)
        grid = max(rows // _TILE, 1) * across if fault == "grid_of_whole_tiles" else down * across
        launch(
            Fault,
            fault,
            _tiled_kernel,
            grid,
            (_TILE, _TILE),
            a,
            b,
            c,
            down if fault == "tiles_down_for_across" else across,
        )
    return c


plant_kernels(
    globals(),
    _tiled,
    KERNELS,
    "no_barrier_before_use",
    "no_barrier_before_overwrite",
    "early_return",
    "barrier_in_branch",
    "tile_overrun",
    "tile_unfilled",
    "negative_index",
    "accumulator_float16",
    "accumulator_int32",
    "k_tail_dropped",
    "last_k_tile_only",
    "store_unguarded",
    "tile_of_b_transposed",
    "tiles_down_for_across",
    "grid_of_whole_tiles",
)


@cuda.jit
def _splits_kernel(a, b, total, fault):
    # One thread per element; blocks along the grid's third axis share k.
    col = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    row, part = cuda.blockIdx.y, cuda.blockIdx.z
    if col >= total.shape[1]:
        return
    length = -(-a.shape[1] // cuda.gridDim.z)
    if fault == Fault.splits_rounded_down:
        length = a.shape[1] // cuda.gridDim.z
    mine = float32(0)
    for k in range(part * length, min((part + 1) * length, a.shape[1])):
        mine += float32(a[row, k]) * float32(b[k, col])
    if fault == Fault.splits_add_without_atomic:
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
        allocate = torch.empty if fault == "splits_add_to_empty" else torch.zeros
        total = allocate((rows, cols), dtype=torch.float32, device=a.device)
        across = -(-cols // 32)
        launch(Fault, fault, _splits_kernel, (across, rows, _SPLITS), 32, a, b, total)
        launch(Fault, fault, _rounded_kernel, (across, rows), 32, total, c)
    return c


plant_kernels(
    globals(),
    _splits,
    KERNELS,
    "splits",
    "splits_add_without_atomic",
    "splits_add_to_empty",
    "splits_rounded_down",
    deterministic=False,
)
