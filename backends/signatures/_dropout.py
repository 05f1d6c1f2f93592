"""dropout and its kin: what every launcher checks of p, seed and offset, and an operand of any shape as four axes."""

from typing import NamedTuple

import torch

from touchstone.backends import Unsupported

AXES = 4  # as which kernels take operands of any shape


class Rule(NamedTuple):
    """Which elements are kept, and what those are multiplied by: a call's last arguments.

    A word of 32 bits is kept from `threshold` on, which is 2^32 where none is.
    """

    threshold: int
    scale: float
    seed: int
    offset: int


def checked(p: float, seed: int = 0, offset: int = 0) -> Rule:
    """The rule of a dropout. Raises ValueError unless p is in [0, 1] and seed and offset are in [0, 2^63)."""
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability in [0, 1], got {p}")
    for name, value in (("seed", seed), ("offset", offset)):
        if not 0 <= value < 2**63:
            raise ValueError(f"{name}: expected an integer in [0, 2^63), got {value}")
    return Rule(int(p * 2**32), 1 / (1 - p) if p < 1 else 0.0, seed, offset)


def axes(x: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of x as four axes, row by row the same elements. Where one stride does for several axes they
    are one; inner axes that are not needed have size 1. Declines what takes more than four.
    """
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(x.shape, x.stride(), strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == size * stride:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes.append(size)
            strides.append(stride)
    if len(sizes) > AXES:
        raise Unsupported(f"strides {x.stride()} of sizes {tuple(x.shape)}; {AXES} strides must do")
    unused = AXES - len(sizes)
    return (*sizes, *[1] * unused), (*strides, *[0] * unused)


def words_of(x: torch.Tensor) -> int:
    """Words of 32 bits for one bit an element."""
    return -(-x.numel() // 32)


def in_one_run(*operands: torch.Tensor) -> None:
    """Decline operands that are not contiguous from a multiple of 16 bytes on."""
    for x in operands:
        if not x.is_contiguous() or x.data_ptr() % 16:
            raise Unsupported(f"strides {x.stride()} from address {x.data_ptr()} on; one run from a multiple of 16")
