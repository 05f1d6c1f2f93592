"""Wrong kernels of activation_backward: a block has all rows of 32 columns."""

import torch

from touchstone.backends.cupy.lib.activations import number
from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.activation_backward import KERNELS as SHARED
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "activation_backward.cu")

KERNELS = SHARED | {
    "whole": Kernel("known-good", "a block has all rows of 32 columns, and its four warps take turns"),
    "no_barrier": Kernel(
        "race", "no barrier between the warps' sums and the warp that adds them", "UninitialisedShared"
    ),
    "half_of_the_warps": Kernel("tail", "dbias has the sums of two of four warps"),
}


def _whole(
    x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu", fault: str = "none"
) -> Gradients:
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        rows, cols = x.shape
        strides = (*x.stride(), 0 if bias is None else bias.stride(0), *dy.stride())
        sizes = (rows, cols, number(activation))
        operands = (x, bias, dy, *strides, dx, dbias, *sizes)
        blocks = -(-cols // 32)
        _module.launch("activation_backward_whole", blocks, (32, 4), *operands, fault=fault, dtype=x.dtype)
    return dx, dbias


plant_kernels(
    globals(), _whole, KERNELS, "whole", "last_rows_left_out", "sums_of_the_last_row", "no_barrier", "half_of_the_warps"
)
