"""Dropout that also returns one bit for each element, 1 where it is kept: y, and 32 bits to a word.

ballot: a thread for each element, and a warp's vote is a word of bits [oneflow2022drop]
four: a thread for four elements and one call of Philox; eight threads join their bits by shuffles [salmon2011]
vectorised: the same for 16 bytes of x in one access, four elements of it or eight [xlite2025]
"""

import torch

from touchstone.backends import shapes
from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures._dropout import axes, checked, in_one_run, words_of
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def ballot(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape and strides, four at most that do not merge -> y of its shape, bits (ceil(n/32),) int32.

    Source: [oneflow2022drop].
    """
    return _by_threads("dropout_bitmask_ballot", 1, x, p, seed, offset)


@variant()
def four(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape and strides, four at most that do not merge -> y of its shape, bits (ceil(n/32),) int32.

    Source: [salmon2011].
    """
    return _by_threads("dropout_bitmask_four", 4, x, p, seed, offset)


@variant()
def vectorised(x: torch.Tensor, *, p: float = 0.5, seed: int = 0, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x of any shape -> y of its shape, bits (ceil(n/32),) int32. Declines x that is not contiguous from a multiple of
    16 bytes on.

    Source: [xlite2025].
    """
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    in_one_run(x)
    if size := y.numel():
        grid = -(-size * x.element_size() // (256 * 16))
        _vectorised.launch("dropout_bitmask_vectorised", grid, 256, x, y, bits, size, *rule, dtype=x.dtype)
    return y, bits


def _by_threads(
    kernel: str, each: int, x: torch.Tensor, p: float, seed: int, offset: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """By threads that have `each` elements, in blocks of 256."""
    shapes("...", x=x)
    rule = checked(p, seed, offset)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    bits = torch.empty(words_of(x), dtype=torch.int32, device=x.device)
    if size := y.numel():
        sizes, strides = axes(x)
        grid = -(-size // (256 * each))
        _scalar.launch(kernel, grid, 256, x, y, bits, size, *sizes[1:], *strides, *rule, dtype=x.dtype)
    return y, bits
