"""Wrong kernels of transpose: `_tiled_kernel` with tiles of 32 by 32."""

import torch
import triton
import triton.language as tl

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.transpose import KERNELS as SHARED


@triton.jit
def _tiled_kernel(x_ptr, y_ptr, rows, cols, x_row, x_col, FAULT: tl.constexpr, SIDE: tl.constexpr):
    tiles = tl.cdiv(cols, SIDE)
    first_row = tl.program_id(0) // tiles * SIDE
    row = first_row.to(tl.int64) + tl.arange(0, SIDE)
    col = (tl.program_id(0) % tiles).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    inside = (row[:, None] < rows) & (col[None, :] < cols)
    if FAULT == "column_stride_ignored":
        x_col = 1
    if FAULT == "offset_int32":
        x_rows = x_ptr + (first_row + tl.arange(0, SIDE))[:, None] * x_row
    else:
        x_rows = x_ptr + row[:, None] * x_row
    if FAULT == "load_unmasked":
        x = tl.load(x_rows + col[None, :] * x_col)
    else:
        x = tl.load(x_rows + col[None, :] * x_col, mask=inside)
    y = tl.trans(x)
    if FAULT == "tile_not_transposed":
        y = x
    stored = tl.trans(inside)
    if FAULT == "mask_not_transposed":
        stored = inside
    if FAULT == "bounds_of_x":
        stored = (col[:, None] < rows) & (row[None, :] < cols)
    if FAULT == "store_unguarded":
        stored = tl.full((SIDE, SIDE), True, tl.int1)
    y_rows = y_ptr + col[:, None] * rows
    if FAULT == "pitch_of_x":
        y_rows = y_ptr + col[:, None] * cols
    tl.store(y_rows + row[None, :], y, mask=stored)


KERNELS = {
    "offset_int32": SHARED["offset_int32"]._replace(found="IntegerOverflowError"),
    **{
        name: SHARED[name]
        for name in (
            "tile_not_transposed",
            "bounds_of_x",
            "store_unguarded",
            "column_stride_ignored",
            "grid_of_whole_tiles",
        )
    },
    "load_unmasked": Kernel("bounds", "the load has no mask: a tile at the border reads on", "OutOfBounds"),
    "mask_not_transposed": Kernel("mask", "the store has the mask of the load, which is not transposed", "OutOfBounds"),
    "pitch_of_x": Kernel(
        "shapes", "rows of the output are stored cols apart, as those of x are", "OutOfBounds|values: "
    ),
}


def _tiled(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((cols, rows), dtype=x.dtype, device=x.device)
    if y.numel():
        down = max(rows // 32, 1) if fault == "grid_of_whole_tiles" else triton.cdiv(rows, 32)
        _tiled_kernel[(down * triton.cdiv(cols, 32),)](x, y, rows, cols, *x.stride(), FAULT=fault, SIDE=32)
    return y


plant_kernels(globals(), _tiled, KERNELS, *KERNELS)
