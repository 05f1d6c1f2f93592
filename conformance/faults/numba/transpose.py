"""Wrong kernels of transpose: tiles of 8 by 8 through shared memory, of elements as integers."""

from enum import IntEnum

import torch
from numba import cuda, int32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.numba._launching import flat, launch
from touchstone.conformance.faults.transpose import KERNELS

_SIDE, _PITCH = 8, 9
_BITS = {2: torch.int16, 4: torch.int32}


class Fault(IntEnum):
    none = 0
    no_barrier = 1
    early_return = 2
    tile_not_transposed = 3
    bounds_of_x = 4
    store_unguarded = 5
    offset_int32 = 6
    column_stride_ignored = 7


@cuda.jit
def _tiles_kernel(x, x_row, x_col, y, rows, cols, fault):
    tile = cuda.shared.array((_SIDE, _PITCH), int32)
    across = (cols + _SIDE - 1) // _SIDE
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    first_row, first_col = cuda.blockIdx.x // across * _SIDE, cuda.blockIdx.x % across * _SIDE
    if fault == Fault.column_stride_ignored:
        x_col = 1

    is_inside = first_row + j < rows and first_col + i < cols
    if fault == Fault.early_return and not is_inside:
        return
    row = (first_row + j) * x_row
    if fault == Fault.offset_int32:
        row = int32(row)
    if is_inside:
        tile[j, i] = x[row + (first_col + i) * x_col]
    if fault != Fault.no_barrier:
        cuda.syncthreads()

    stores = first_col + j < cols and first_row + i < rows
    if fault == Fault.bounds_of_x:
        stores = first_col + j < rows and first_row + i < cols
    if fault == Fault.store_unguarded:
        stores = True
    r, c = i, j
    if fault == Fault.tile_not_transposed:
        r, c = j, i
    # What was never filled is 0 where a fault reads it.
    is_filled = first_row + r < rows and first_col + c < cols
    if stores:
        y[(first_col + j) * rows + first_row + i] = tile[r, c] if is_filled else 0


def _tiles(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if y.numel():
        down, across = -(-rows // _SIDE), -(-cols // _SIDE)
        if fault == "grid_of_whole_tiles":
            down = max(rows // _SIDE, 1)
        kind = _BITS[x.element_size()]
        operands = (flat(x.view(kind)), *x.stride(), y.view(kind).view(-1), rows, cols)
        launch(Fault, fault, _tiles_kernel, down * across, (_SIDE, _SIDE), *operands)
    return y


plant_kernels(globals(), _tiles, KERNELS, *KERNELS)
