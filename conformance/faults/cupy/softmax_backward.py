"""Wrong kernels of softmax_backward: half a warp per row."""

import torch

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cupy._module import Faulty

_module = Faulty(__file__, "softmax_backward.cu")

KERNELS = {
    "halfwarp": Kernel("known-good", "half a warp holds a row and sums by shuffles"),
    "mask_of_lower_half": Kernel(
        "race", "the shuffles of the upper half of a warp name the lanes of the lower one", "InactiveLanes"
    ),
    "step_across": Kernel(
        "race", "the first step of the sum is 16: it reads the row of the other half of the warp", "InactiveLanes"
    ),
    "steps_short": Kernel("formula", "the sum over 16 lanes begins with a step of 4: each lane has the sum of eight"),
    "whole_steps": Kernel("tail", "the sum leaves out columns beyond a multiple of 16"),
    "load_unguarded": Kernel("bounds", "the loads of the sum do not ask whether the column is inside", "OutOfBounds"),
    "strides_of_y": Kernel("strides", "dy is read with the strides of y", "values: |OutOfBounds"),
    "grid_rounded_down": Kernel("tail", "the grid counts whole blocks of four rows: the rows beyond are not written"),
}


def _halfwarp(y: torch.Tensor, dy: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, rows cols", y=y, dy=dy)
    dx = torch.empty((rows, cols), dtype=y.dtype, device=y.device)
    if dx.numel():
        grid = max(rows // 4, 1) if fault == "grid_rounded_down" else -(-rows // 4)
        strides = (*y.stride(), *dy.stride())
        operands = (y, dy, dx, rows, cols, *strides)
        _module.launch("softmax_backward_halfwarp", grid, 64, *operands, fault=fault, dtype=y.dtype)
    return dx


plant_kernels(
    globals(),
    _halfwarp,
    KERNELS,
    "halfwarp",
    "mask_of_lower_half",
    "step_across",
    "steps_short",
    "whole_steps",
    "load_unguarded",
    "strides_of_y",
    "grid_rounded_down",
)
