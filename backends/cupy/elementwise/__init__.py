"""y = a + b or a·b of two tensors of one shape, whatever its rank.

naive: an element to a thread, and as many threads as there are elements [cuda2025]
gridstride: as many blocks as run at once step through the elements: no block starts and ends for 256 of them [cuda2025]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
"""

import torch

from touchstone.backends.cupy.lib.norms import resident
from touchstone.backends.cupy.lib.pointwise import THREADS, blocks_for, in_lines
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures.elementwise import FUNCTIONS, checked_output, in_four_axes
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides. Source: [cuda2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        _scalars("elementwise_naive", a, b, y, function, blocks_for(y.numel()))
    return y


@variant()
def gridstride(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides. Source: [cuda2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        _stepping(a, b, y, function)
    return y


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides; where elements of more than two axes lie apart, as in
    `gridstride`. Source: [xlite2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        ((*views,), *others) = in_four_axes(a, b, y)
        if others or views[0].shape[0] * views[0].shape[1] > 1:
            _stepping(a, b, y, function)
            return y
        lines = in_lines(*(view[0, 0] for view in views))
        operands = (a, b, y, *lines.strides[:5], lines.rows, lines.cols, int(lines.wide), FUNCTIONS.index(function))
        _vectorised.launch("elementwise_vectorised", lines.blocks, THREADS, *operands, dtype=a.dtype)
    return y


def _stepping(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, function: str) -> None:
    _scalars("elementwise_gridstride", a, b, y, function, min(resident(a, 8), -(-y.numel() // THREADS)))


def _scalars(kernel: str, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, function: str, blocks: int) -> None:
    for first, second, out in in_four_axes(a, b, y):
        operands = (first, second, out, *out.shape, *first.stride(), *second.stride(), *out.stride())
        _scalar.launch(kernel, blocks, THREADS, *operands, FUNCTIONS.index(function), dtype=a.dtype)
