"""Launching attention over keys of two parts, four rows a block."""

from touchstone.backends import Unsupported
from touchstone.backends.cupy.runtime.module import GRID_LIMIT


def row_grid(rows: int, heads: int) -> tuple[int, int]:
    """A grid of four rows a block along x and of key heads, or of sequences, along y; declines more than it has."""
    if heads > GRID_LIMIT[1]:
        raise Unsupported(f"{heads} sequences and key heads; a grid has {GRID_LIMIT[1]} rows of blocks")
    return -(-rows // 4), heads
