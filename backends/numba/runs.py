"""A row in the registers of a warp or a block, moved in runs of 16 bytes where rows are aligned, else element by element.

The r-th run of a thread begins at column (r * blockDim.x + threadIdx.x) * (elements of 16 bytes).
"""

import torch
from numba import cuda, uint32, uint64

from backends.numba.rows import at_most, blocks, threads
from backends.numba.words import lanes_of, load_run, pack, store_run

LANES = 8  # elements of a run at most


def in_runs(
    rows: int, cols: int, *operands: torch.Tensor | None
) -> tuple[tuple[int, tuple[int, int]], tuple[int, bool]]:
    """Grid and block of a kernel that holds a row in the registers of its threads, as runs of 16 bytes.

    Then the runs of each thread, 2 or 4, and whether one access moves a run. Short rows share a block; rows longer than
    1024 threads hold are declined.
    """
    given = [operand for operand in operands if operand is not None]
    length = 16 // given[0].element_size()
    at_most(cols, 4 * 1024 * length, "block")
    runs = 2 if cols <= 2 * 1024 * length else 4
    across = threads(-(-cols // (runs * length)), 1024)
    down = 8 if across == 32 else 1
    return (blocks(-(-rows // down)), (across, down)), (runs, all(map(aligned, given)))


def aligned(tensor: torch.Tensor) -> bool:
    """Whether every row is cut into whole runs of 16 bytes that begin at multiples of 16 bytes."""
    length = 16 // tensor.element_size()
    return (
        tensor.stride(-1) == 1
        and not any(n % length for n in (tensor.shape[-1], *tensor.stride()[:-1]))
        and tensor.data_ptr() % 16 == 0
    )


@cuda.jit(device=True)
def first_col(r, x):
    """The column of x with which the thread's r-th run begins."""
    return uint32((r * cuda.blockDim.x + cuda.threadIdx.x) * lanes_of(x))


@cuda.jit(device=True)
def inside(r, i, x, wide):
    """Whether the i-th column of the thread's r-th run is one of x; where `wide`, all of a run are or none."""
    return first_col(r, x) + uint32(0 if wide else i) < uint64(x.shape[1])


@cuda.jit(device=True)
def load_row(x, row, words, wide):
    """What the thread holds of a row of x, four words a run."""
    for r in range(words.size // 4):
        load_run(x, (row, first_col(r, x)), words, 4 * r, wide)


@cuda.jit(device=True)
def store_values(values, y, row, r, wide):
    """Round and store the thread's r-th run of a row of y."""
    words = cuda.local.array(4, uint32)
    pack(values, words, 0, y)
    store_run(words, 0, y, (row, first_col(r, y)), wide)
