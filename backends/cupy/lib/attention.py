"""What the launchers of attention and of its gradients share: padded head dimensions, how operands lie in memory."""

import torch

from touchstone.backends import Unsupported
from touchstone.backends.cupy.lib.gemm import ceil_div
from touchstone.backends.cupy.runtime.hopper import aligned, taken


def padded_dimension(D: int) -> int:
    """The head dimension padded to whole tiles: a multiple of 64."""
    return ceil_div(D, 64) * 64


def whole_pieces(*operands: torch.Tensor) -> bool:
    """Whether every head row of every operand is whole 16-byte pieces, one after another and on 16 bytes."""
    return all(
        x.stride(3) == 1
        and x.shape[3] * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        and all(n == 1 or s * x.element_size() % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in operands
    )


def check_copyable(**operands: torch.Tensor) -> None:
    """Raise Unsupported, naming the argument, for an operand that the copy engine does not take as it lies."""
    for name, x in operands.items():
        aligned(name, x)
        if not taken(x):
            raise Unsupported(
                f"{name}: strides {x.stride()} of {x.element_size()} bytes; the copy engine needs 1 for the last axis "
                "and positive multiples of 16 bytes for the others"
            )
