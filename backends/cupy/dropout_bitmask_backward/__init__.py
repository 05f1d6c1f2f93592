"""The gradient of dropout_bitmask: dx = dy/(1 - p) where the element's bit is 1, else 0.

naive: a thread for each element looks at its bit, and no Philox is called [oneflow2022drop]
vectorised: the same for 16 bytes of dy in one access, four elements of it or eight [xlite2025]
"""

import torch

from touchstone.backends.cupy.runtime.module import Module
from touchstone.backends.signatures._dropout import axes, in_one_run
from touchstone.backends.signatures.dropout_bitmask_backward import checked_scale
from touchstone.backends.variants import variant

_scalar = Module(__file__, "scalar.cu")
_vectorised = Module(__file__, "vectorised.cu")


@variant()
def naive(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """dy of any shape and strides, four at most that do not merge; bits (ceil(n/32),) int32 -> dx of dy's shape.

    Source: [oneflow2022drop].
    """
    scale = checked_scale(dy, bits, p)
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    if size := dx.numel():
        sizes, strides = axes(dy)
        operands = (dy, bits, dx, size, *sizes[1:], *strides, *bits.stride(), scale)
        _scalar.launch("dropout_bitmask_backward_naive", -(-size // 256), 256, *operands, dtype=dy.dtype)
    return dx


@variant()
def vectorised(dy: torch.Tensor, bits: torch.Tensor, *, p: float = 0.5) -> torch.Tensor:
    """dy of any shape, bits (ceil(n/32),) int32 -> dx of dy's shape.

    Declines dy that is not contiguous from a multiple of 16 bytes on. Source: [xlite2025].
    """
    scale = checked_scale(dy, bits, p)
    dx = torch.empty(dy.shape, dtype=dy.dtype, device=dy.device)
    in_one_run(dy)
    if size := dx.numel():
        grid = -(-size * dy.element_size() // (256 * 16))
        operands = (dy, bits, dx, size, *bits.stride(), scale)
        _vectorised.launch("dropout_bitmask_backward_vectorised", grid, 256, *operands, dtype=dy.dtype)
    return dx
