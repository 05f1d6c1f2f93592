"""The arguments of reduce, checked once for all languages."""

import torch

from touchstone.backends import shapes

FUNCTIONS = ("sum", "max", "min")


def checked(x: torch.Tensor, function: str) -> int:
    """The place of `function` among FUNCTIONS; raises for another, and for the maximum or minimum of nothing."""
    shapes("n", x=x)
    number = function_number(function)
    if not x.numel() and function != "sum":
        raise ValueError(f"x: is empty, and nothing has no {function}")
    return number


def function_number(function: str) -> int:
    """The place of `function` among FUNCTIONS; raises ValueError for another."""
    if function not in FUNCTIONS:
        raise ValueError(f"function: expected one of {', '.join(FUNCTIONS)}, got {function!r}")
    return FUNCTIONS.index(function)


def neutral_key(number: int) -> int:
    """What an atomic reduction begins with, as an int32: of a sum the bits of 0, of an extreme the key of ∓inf.

    A key orders numbers as integers: the bits of those above 0, the bits but the sign inverted of those below; a NaN's
    key lies beyond both infinities, on the side that wins.
    """
    return (0, -0x7F800001, 0x7F800000)[number]
