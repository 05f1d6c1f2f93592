"""How the wrong kernels are launched: with a number for what is wrong, so that one compilation serves all faults."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from touchstone.backends.numba.runtime import launching


def launch(
    switches: type[IntEnum],
    fault: str,
    kernel: Any,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    *arguments: Any,
    shared: int = 0,
) -> None:
    """Launch with `fault` switched on; a name that is not one of `switches` is the launcher's own fault."""
    number = switches[fault] if fault in switches.__members__ else 0
    launching.launch(kernel, grid, block, *arguments, np.int32(number), shared=shared)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor from its first element to its last: one type of array for all strides."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach + 1,), (1,))
