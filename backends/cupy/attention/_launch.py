"""What the launchers of attention and of its backward share."""

import torch


def _blocks(rows: int, size: int) -> int:
    return -(-rows // size)


def _block_d(D: int) -> int:
    """The head dimension padded to whole tiles: a multiple of 64."""
    return _blocks(D, 64) * 64


def _aligned(*operands: torch.Tensor) -> bool:
    """Whether every head row of every operand is whole 16-byte pieces, one after another and on 16 bytes."""
    return all(
        x.stride(3) == 1
        and x.shape[3] * x.element_size() % 16 == 0
        and x.data_ptr() % 16 == 0
        and all(n == 1 or s * x.element_size() % 16 == 0 for n, s in zip(x.shape[:3], x.stride()[:3], strict=True))
        for x in operands
    )
