"""What the launchers of elementwise kernels share: operands as lines of neighbours, in vectors of 16 bytes or not."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.runtime.module import GRID_LIMIT

THREADS = 256


class Lines(NamedTuple):
    """Matrices of the same shape as `rows` lines of `cols` elements: one line where all of them are contiguous."""

    rows: int
    cols: int
    strides: tuple[int, ...]  # of each matrix, from line to line and from element to element
    wide: bool  # whether every vector begins at a multiple of 16 bytes, in lines of stride 1
    blocks: int  # of THREADS threads, a vector each


def blocks_for(threads: int) -> int:
    """Blocks of so many threads, declined where a grid has fewer."""
    blocks = -(-threads // THREADS)
    if blocks > GRID_LIMIT[0]:
        raise Unsupported(f"{threads} threads; a grid has {GRID_LIMIT[0]} blocks of {THREADS}")
    return blocks


def in_lines(*matrices: torch.Tensor) -> Lines:
    """Matrices (rows, cols) of one dtype, none empty, for kernels whose threads move a vector each."""
    first = matrices[0]
    if all(matrix.is_contiguous() for matrix in matrices):
        matrices = tuple(matrix.view(1, -1) for matrix in matrices)
    rows, cols = matrices[0].shape
    length = 16 // first.element_size()
    return Lines(
        rows,
        cols,
        tuple(stride for matrix in matrices for stride in matrix.stride()),
        all(_is_wide(matrix.stride(), matrix.data_ptr(), rows, length) for matrix in matrices),
        blocks_for(rows * -(-cols // length)),
    )


def _is_wide(strides: Sequence[int], address: int, rows: int, length: int) -> bool:
    return strides[1] == 1 and address % 16 == 0 and (rows == 1 or strides[0] % length == 0)
