"""Dropout: y = x/(1 - p) where Philox's word for the element is at least floor(p·2^32), else 0.

naive: a thread for each element calls Philox and takes one of the four words that it makes [salmon2011]
four: a thread for four elements, which takes all four: a quarter of the multiplications [salmon2011]
vectorised: the same for 16 bytes of x in one access, four elements of it or eight [xlite2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures._dropout import axes, checked, in_one_run
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    return _by_threads("dropout_naive", 1, x, p, seed, offset)


@variant()
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides, four at most that do not merge -> y of its shape. Source: [salmon2011]."""
    return _by_threads("dropout_four", 4, x, p, seed, offset)


@variant()
def vectorised(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> torch.Tensor:
    """x of any shape -> y of its shape. Declines x that is not contiguous from a multiple of 16 bytes on.

    Source: [xlite2025].
    """
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    in_one_run(x)
    if size := y.numel():
        grid = -(-size * x.element_size() // (256 * 16))
        _vectorised.launch("dropout_vectorised", grid, 256, x, y, size, *rule, dtype=x.dtype)
    return y


def _by_threads(kernel: str, each: int, x: torch.Tensor, p: float, seed: int, offset: int) -> torch.Tensor:
    """By threads that have `each` elements, in blocks of 256."""
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if size := y.numel():
        sizes, strides = axes(x)
        grid = -(-size // (256 * each))
        _scalar.launch(kernel, grid, 256, x, y, size, *sizes[1:], *strides, *rule, dtype=x.dtype)
    return y
