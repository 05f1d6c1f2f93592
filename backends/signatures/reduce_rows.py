"""The arguments of reduce_rows, checked once for all languages."""

import torch

from touchstone.backends import shapes
from touchstone.backends.signatures.reduce import function_number


def checked(x: torch.Tensor, axis: int, function: str) -> tuple[torch.Tensor, int]:
    """x with the reduced axis last, and the place of `function` among FUNCTIONS; raises for other arguments, and for
    the maximum or minimum of nothing."""
    shapes("rows cols", x=x)
    number = function_number(function)
    if axis not in (-2, -1, 0, 1):
        raise ValueError(f"axis: expected -1 (or 1) or 0 (or -2), got {axis!r}")
    seen = x if axis in (-1, 1) else x.t()
    if not seen.shape[1] and number:
        raise ValueError(f"x: is empty along axis {axis}, and nothing has no {function}")
    return seen, number
