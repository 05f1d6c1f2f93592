"""What the launchers of the norms share: blocks and grids for rows, vectors of elements, blocks that run at once."""

from functools import lru_cache

import torch

from touchstone.backends.devices import multiprocessors


def threads(cols: int, each: int = 1, most: int = 256) -> int:
    """Threads for a row, in whole warps, `each` columns to a thread; at most `most`."""
    return min(32 * -(-cols // (32 * each)), most)


def registers_per_row(cols: int) -> tuple[int, int]:
    """Columns in a thread's registers, and the threads that hold a row of up to 32768."""
    columns = 8 if cols <= 8192 else 16 if cols <= 16384 else 32
    return columns, threads(cols, columns, 1024)


def vector_width(*tensors: torch.Tensor | None) -> int:
    """Elements in one access: 16 bytes' worth if every row of every tensor is cut into whole aligned vectors, else
    1."""
    for tensor in tensors:
        if tensor is None:
            continue
        length = _in_vectors(tensor.shape, tensor.stride(), tensor.element_size())
        if length == 1 or tensor.data_ptr() % 16:
            return 1
    return length


@lru_cache(maxsize=4096)  # 2 us
def _in_vectors(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> int:
    length = 16 // size
    return 1 if strides[-1] != 1 or any(n % length for n in (shape[-1], *strides[:-1])) else length


def resident(x: torch.Tensor, each: int) -> int:
    """Blocks of a grid that fills the device of `x` with `each` on a multiprocessor; a few in the emulator."""
    return multiprocessors(x.device) * each if x.is_cuda else 3


def resident_grid(rows: int, cols: int, x: torch.Tensor, columns: int = 8) -> tuple[int, int]:
    """Blocks for `rows`, so many that a multiprocessor runs 1024 threads at once, and the threads of each; a thread has
    `columns` columns of a row."""
    across = threads(cols, columns, 1024)
    return min(rows, resident(x, 1024 // across)), across
