"""dropout_bitmask_backward: dy of any shape with n elements, bits (ceil(n/32),) int32; dx like dy."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures._dropout import checked, words_of


def checked_scale(dy: torch.Tensor, bits: torch.Tensor, p: float) -> float:
    """What kept elements of checked operands are multiplied by."""
    (given,) = shapes("..., words:int32", dy=dy, bits=bits)
    if given != words_of(dy):
        raise ValueError(f"bits: {given} words for {dy.numel()} elements; expected {words_of(dy)}")
    return checked(p).scale
