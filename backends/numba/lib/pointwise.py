"""What elementwise kernels share: operands as lines of neighbours, in vectors of 16 bytes or not."""

from typing import NamedTuple

import torch
from numba import cuda, uint32, uint64

from touchstone.backends.devices import multiprocessors
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked

THREADS = 256
LANES = 8  # elements of a vector at most


class Lines(NamedTuple):
    """Matrices of the same shape as lines of elements: one line where all of them are contiguous."""

    matrices: tuple[torch.Tensor, ...]
    wide: bool  # whether every vector begins at a multiple of 16 bytes, in lines of stride 1
    grid: int  # blocks of THREADS threads, a vector each


def in_lines(*matrices: torch.Tensor) -> Lines:
    """Matrices (rows, cols) of one dtype, none empty, for kernels whose threads move a vector each."""
    if all(matrix.is_contiguous() for matrix in matrices):
        matrices = tuple(matrix.view(1, -1) for matrix in matrices)
    rows, cols = matrices[0].shape
    length = 16 // matrices[0].element_size()
    vectors = rows * -(-cols // length)
    return Lines(matrices, all(_is_wide(matrix, length) for matrix in matrices), checked_grid(-(-vectors // THREADS)))


def _is_wide(matrix: torch.Tensor, length: int) -> bool:
    aligned = matrix.shape[0] == 1 or matrix.stride(0) % length == 0
    return matrix.stride(1) == 1 and matrix.data_ptr() % 16 == 0 and aligned


def resident(x: torch.Tensor, each: int) -> int:
    """Blocks of a grid that fills the device of `x` with `each` on a multiprocessor; a few in the emulator."""
    return multiprocessors(x.device) * each if x.is_cuda else 3


@cuda.jit(device=True)
def place_of_vector(y):
    """The line and the first column of the thread's vector."""
    length = uint64(lanes_of(y))
    across = (uint64(y.shape[1]) + length - uint64(1)) // length
    vector = uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    if y.shape[0] == 1:
        return uint64(vector >= across), vector * length
    return vector // across, vector % across * length


@cuda.jit(device=True)
def load_line(x, row, col, values, wide):
    """The vector from x[row, col] on as float32; what lies beyond the line is not read, and 0."""
    words = cuda.local.array(4, uint32)
    whole = col + uint64(lanes_of(x)) <= uint64(x.shape[1])
    load_vector(x, (row, col), words, 0, wide and whole)
    for i in range(lanes_of(x)):
        values[i] = unpacked(words, i, x)


@cuda.jit(device=True)
def store_line(values, y, row, col, wide):
    """Round and store the vector from y[row, col] on, as far as the line goes."""
    words = cuda.local.array(4, uint32)
    pack(values, words, 0, y)
    store_vector(words, 0, y, (row, col), wide and col + uint64(lanes_of(y)) <= uint64(y.shape[1]))
