"""What the launchers of row-wise kernels share: grids and blocks for rows, by the way a row is held."""

import torch

from backends import Unsupported
from backends.cupy.module import GRID_LIMIT
from backends.cupy.norms import run, threads

WARP_COLS = 1024  # what the lanes of one warp hold, 32 columns each: `held` in the kernels


def at_most(cols: int, limit: int, what: str) -> None:
    """Decline more than `limit` columns, what one `what` holds."""
    if cols > limit:
        raise Unsupported(f"{cols} columns; one {what} holds {limit}")


def blocks(rows: int) -> int:
    """A grid of one block a row; declines more rows than a grid has blocks."""
    if rows > GRID_LIMIT[0]:
        raise Unsupported(f"{rows} rows; a grid has {GRID_LIMIT[0]} blocks")
    return rows


def warp_grid(rows: int) -> tuple[int, tuple[int, int]]:
    """Grid and block of one warp a row, four rows a block."""
    return -(-rows // 4), (32, 4)


def in_registers(
    rows: int, cols: int, *operands: torch.Tensor | None, runs: int = 4, across: int = 1024
) -> tuple[tuple[int, tuple[int, int]], dict[str, int]]:
    """Grid and block, and the definitions, of a kernel that holds a row in the registers of its threads.

    A thread holds up to `runs` accesses of 16 bytes, and more only where `across` threads would not do: the fewer
    registers it takes, the more rows are on their way at a time. Declines more than 32768 columns, and more than 16384
    where `operands` are not contiguous and aligned to 16 bytes.
    """
    length = run(*operands)
    if cols > (limit := 32768 if length > 1 else 16384):
        raise Unsupported(f"{cols} columns; one block holds {limit} in accesses of {length} elements")
    most = runs * length if length > 1 else 16
    columns = min(most, next((held for held in (8, 16) if 32 * held >= cols), most))
    if columns * across < cols:
        columns *= 2
    while columns * 1024 < cols:
        columns *= 2
    size = threads(cols, columns, 1024)
    down = 4 if size == 32 else 1
    return (blocks(-(-rows // down)), (size, down)), {"COLUMNS": columns, "RUN": length}
