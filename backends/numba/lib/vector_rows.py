"""A row in the registers of a warp or a block, moved in vectors of 16 bytes where rows are aligned, else element by
element.

The r-th vector of a thread begins at column (r * blockDim.x + threadIdx.x) * (elements of 16 bytes).
"""

import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends import Unsupported
from touchstone.backends.numba.lib.reductions import at_most, block_threads, checked_grid, warp_sum
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, opaque, pack, store_vector, unpacked

LANES = 8  # elements of a run at most


def in_vectors(
    rows: int, cols: int, *operands: torch.Tensor | None, most: int = 1024
) -> tuple[tuple[int, tuple[int, int]], tuple[int, bool]]:
    """Grid and block of a kernel that holds a row in the registers of its threads, `most` or fewer, as runs of 16
    bytes.

    Then the vectors of each thread, 2 or 4 (4 or 8 where `most` is 512), and whether one access moves a vector. Short
    rows share a block; rows longer than 4096 vectors are declined.
    """
    given = [operand for operand in operands if operand is not None]
    length = 16 // given[0].element_size()
    at_most(cols, 4 * 1024 * length, "block")
    vectors = 2048 // most if cols <= 2 * 1024 * length else 4096 // most
    return _extent(rows, -(-cols // length), vectors, most), (vectors, all(map(are_rows_aligned, given)))


def _extent(rows: int, runs: int, vectors: int, most: int) -> tuple[int, tuple[int, int]]:
    """Grid and block for rows of `runs` runs of 16 bytes, `vectors` to a thread."""
    across = block_threads(-(-runs // vectors), most)
    down = 8 if across == 32 else 1
    return checked_grid(-(-rows // down)), (across, down)


def in_halves(
    rows: int, cols: int, *operands: torch.Tensor | None, four: int = 1024
) -> tuple[tuple[int, tuple[int, int]], tuple[int, bool]]:
    """As `in_vectors`, for rows of 16-bit elements that stay packed: four vectors a thread for up to `four` threads,
    else eight. Declines other elements, and rows longer than 4096 vectors."""
    given = [operand for operand in operands if operand is not None]
    if given[0].element_size() != 2:
        raise Unsupported(f"{given[0].dtype}; a row stays in registers in 16 bits an element")
    at_most(cols, 4 * 1024 * LANES, "block")
    vectors = 4 if cols <= 4 * four * LANES else 8
    return _extent(rows, -(-cols // LANES), vectors, 1024), (vectors, all(map(are_rows_aligned, given)))


def are_rows_aligned(tensor: torch.Tensor) -> bool:
    """Whether every row is cut into whole vectors of 16 bytes that begin at multiples of 16 bytes."""
    length = 16 // tensor.element_size()
    return (
        tensor.stride(-1) == 1
        and not any(n % length for n in (tensor.shape[-1], *tensor.stride()[:-1]))
        and tensor.data_ptr() % 16 == 0
    )


@cuda.jit(device=True)
def first_col(r, x):
    """The column of x with which the thread's r-th vector begins."""
    return uint32((r * cuda.blockDim.x + cuda.threadIdx.x) * lanes_of(x))


@cuda.jit(device=True)
def inside(r, i, x, wide):
    """Whether the i-th column of the thread's r-th vector is one of x; where `wide`, all of a vector are or none."""
    return first_col(r, x) + uint32(0 if wide else i) < uint64(x.shape[1])


@cuda.jit(device=True)
def load_row(x, row, words, wide):
    """What the thread holds of a row of x, four words per vector."""
    for r in range(words.size // 4):
        load_vector(x, (row, first_col(r, x)), words, 4 * r, wide)


@cuda.jit(device=True)
def keep_packed(words):
    """Have what follows convert the elements again: their float32 would be kept beside them, in twice the registers."""
    for i in range(words.size):
        words[i] = opaque(words[i])


@cuda.jit(device=True)
def store_values(values, y, row, r, wide):
    """Round and store the thread's r-th vector of a row of y."""
    words = cuda.local.array(4, uint32)
    pack(values, words, 0, y)
    store_vector(words, 0, y, (row, first_col(r, y)), wide)


@cuda.jit(device=True)
def columns_in(r, x):
    """How many columns of x are in the thread's r-th vector."""
    first, cols = first_col(r, x), uint32(x.shape[1])
    return float32(min(cols - first, uint32(lanes_of(x)))) if first < cols else float32(0)


@cuda.jit(device=True)
def row_moments(words, means, x, wide):
    """The mean of a row of x in `words`, and the sum of (x - mean)^2, in every thread; once in a kernel.

    Squares are of distances from the mean of a vector, then moved to those of the warp and the row: one barrier where a
    mean and a variance after it take two, and no vector's floats have to outlive it. `means` is a local array of
    float32, one a vector.
    """
    partial = cuda.shared.array((3, 32), float32)
    length, lane, warps = lanes_of(x), uint32(cuda.laneid), uint32(cuda.blockDim.x // 32)
    total, square, count = float32(0), float32(0), float32(0)
    for r in range(means.size):
        part = float32(0)
        for i in range(length):
            part += unpacked(words, r * length + i, x)
        means[r] = part / (float32(length) if wide else max(columns_in(r, x), float32(1)))
        for i in range(length):
            centred = unpacked(words, r * length + i, x) - means[r]
            square += centred * centred if wide or inside(r, i, x, wide) else float32(0)
        total += part
        count += columns_in(r, x)
    count = warp_sum(count)
    mean = warp_sum(total) / max(count, float32(1))
    for r in range(means.size):
        square += columns_in(r, x) * (means[r] - mean) * (means[r] - mean)
    square = warp_sum(square)
    if cuda.blockDim.x == 32:
        return mean, square

    if lane == uint32(0):
        warp = uint32(cuda.threadIdx.x // 32)
        partial[0, warp], partial[1, warp], partial[2, warp] = mean, square, count
    cuda.syncthreads()
    own, square, count = float32(0), float32(0), float32(0)
    if lane < warps:
        own, square, count = partial[0, lane], partial[1, lane], partial[2, lane]
    mean = warp_sum(own * count) / float32(x.shape[1])
    return mean, warp_sum(square + count * (own - mean) * (own - mean))
