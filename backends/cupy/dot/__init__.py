"""Dot product: y = Σ a·b.

shuffle: a thread adds many products a grid apart, a warp its threads' sums by shuffles; one block adds those of the
  blocks [luitjens2014]
vectorised: a thread loads 16 bytes of neighbours at a time [luitjens2013]
half: products and sums in float16, a block's result added by an atomic addition [cuda2025half]
half2: two products in one instruction, and two sums in one atomic addition [cuda2025half]
fastatomic: blocks add to different places, each by an atomic addition of two elements of which one is 0 [pytorch2020]
"""

import torch

from touchstone.backends import Unsupported, shapes
from touchstone.backends.cupy.lib.norms import resident, threads, vector_width
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.variants import variant

_float = Module(__file__, "float.cu")
_half = Module(__file__, "half.cu")
_PLACES = 33  # to which blocks add; an odd number, so that the last has no neighbour


def _grid(x: torch.Tensor, each: int = 1) -> tuple[int, int]:
    """Blocks that run at once, no more than there is work for, and the threads of each; `each` elements to a thread."""
    across = threads(max(x.numel(), 1), each)
    return max(1, min(resident(x, 8), -(-x.numel() // (across * each)))), across


@variant()
def shuffle(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides. Source: [luitjens2014]."""
    (n,) = shapes("n, n", a=a, b=b)
    blocks, across = _grid(a)
    y, partials = a.new_empty(()), a.new_empty(blocks, dtype=torch.float32)
    _float.launch("dot_shuffle", blocks, across, a, b, partials, n, *a.stride(), *b.stride(), dtype=a.dtype)
    _float.launch("dot_finish", 1, 32, partials, y, blocks, dtype=a.dtype)
    return y


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) -> y (); any strides, but only neighbours on 16 bytes move as vectors. Source: [luitjens2013]."""
    (n,) = shapes("n, n", a=a, b=b)
    whole = n - n % (16 // a.element_size())
    length = vector_width(a[:whole], b[:whole])
    blocks, across = _grid(a, length)
    y, partials = a.new_empty(()), a.new_empty(blocks, dtype=torch.float32)
    operands = (a, b, partials, n, *a.stride(), *b.stride())
    _float.launch("dot_vectorised", blocks, across, *operands, dtype=a.dtype, VECTOR=length)
    _float.launch("dot_finish", 1, 32, partials, y, blocks, dtype=a.dtype)
    return y


def _length_of_halves(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many products there are; declines other dtypes than float16."""
    (n,) = shapes("n, n", a=a, b=b)
    if a.dtype is not torch.float16:
        raise Unsupported(f"{a.dtype}; the sum is a float16")
    return n


@variant(dtypes=("float16",), compute="half_sum", deterministic=False)
def half(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) of float16 -> y (); any strides. The sum is exact only among integers. Source: [cuda2025half]."""
    n = _length_of_halves(a, b)
    y = torch.zeros((), dtype=a.dtype, device=a.device)
    _half.launch("dot_half", *_grid(a), a, b, y, n, *a.stride(), *b.stride())
    return y


@variant(dtypes=("float16",), compute="half_sum", deterministic=False)
def half2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) of float16 -> y (); any strides, but only neighbours on 4 bytes load as pairs. [cuda2025half]"""
    n = _length_of_halves(a, b)
    y, total = a.new_empty(()), torch.zeros(2, dtype=a.dtype, device=a.device)
    paired = int(all(t.stride(0) == 1 and t.data_ptr() % 4 == 0 for t in (a, b)))
    _half.launch("dot_half2", *_grid(a, 2), a, b, total, n, *a.stride(), *b.stride(), paired)
    _half.launch("dot_finish_half", 1, 32, total, y, 2)
    return y


@variant(dtypes=("float16",), compute="half_sum", deterministic=False)
def fastatomic(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a, b (n,) of float16 -> y (); any strides. Source: [pytorch2020]."""
    n = _length_of_halves(a, b)
    y, totals = a.new_empty(()), torch.zeros(_PLACES, dtype=a.dtype, device=a.device)
    _half.launch("dot_fastatomic", *_grid(a), a, b, totals, _PLACES, n, *a.stride(), *b.stride())
    _half.launch("dot_finish_half", 1, 32, totals, y, _PLACES)
    return y
