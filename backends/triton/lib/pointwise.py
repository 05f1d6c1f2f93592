"""What elementwise kernels share: where the elements of a program lie in operands of two axes."""

import torch
import triton
import triton.language as tl

from touchstone.backends import Unsupported
from touchstone.backends.sizes import ceil_div

GRID_LIMIT = 2**31 - 1


def programs(size: int, block: int) -> tuple[int]:
    """The grid of programs that have `block` of `size` elements each; declined where a grid has fewer."""
    if ceil_div(size, block) > GRID_LIMIT:
        raise Unsupported(f"{size} elements; a grid has {GRID_LIMIT} programs of {block}")
    return (ceil_div(size, block),)


def is_flat(*tensors: torch.Tensor) -> bool:
    """Whether each element of every tensor lies behind the one before it."""
    return all(tensor.is_contiguous() for tensor in tensors)


@triton.jit
def offsets(i, cols, stride_row, stride_col, FLAT: tl.constexpr):
    """Of the elements number `i` (64 bits) of a matrix; where FLAT they are those numbers, which the compiler sees to
    be neighbours."""
    if FLAT:
        return i
    return i // cols * stride_row + i % cols * stride_col


@triton.jit
def load(pointers, inside):
    """As float32, and 0 where not `inside`; None stands for everywhere. A mask whose end is no multiple of 16 makes
    each element a load of its own, so programs whose elements all exist take none."""
    if inside is None:
        loaded = tl.load(pointers)
    else:
        loaded = tl.load(pointers, mask=inside, other=0.0)
    return loaded.to(tl.float32)
