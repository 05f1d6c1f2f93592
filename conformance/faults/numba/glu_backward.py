"""Wrong kernels of glu_backward: a few blocks step through the elements, which lie where the strides say."""

from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.backends.numba.lib.activations import activate, number, slope
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.glu_backward import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    dup_from_dgate = 1
    dy_stride_ignored = 2
    sums_into_dup = 3


@cuda.jit
def _stepping_kernel(gate, gate_row, gate_col, up, up_row, up_col, dy, dy_row, dy_col, dgate, dup, activation, fault):
    rows, cols = dup.shape
    i = cuda.grid(1)
    if fault == Fault.dy_stride_ignored:
        dy_row, dy_col = gate_row, gate_col
    while i < rows * cols:
        row, col = i // cols, i % cols
        g, upstream = float32(gate[row * gate_row + col * gate_col]), float32(dy[row * dy_row + col * dy_col])
        found = upstream * float32(up[row * up_row + col * up_col]) * slope(g, activation)
        dgate[row, col] = found
        if fault == Fault.dup_from_dgate:
            g = found
        found = upstream * activate(g, activation)
        if fault == Fault.sums_into_dup:
            found += float32(dup[row, col])
        dup[row, col] = found
        i += cuda.gridsize(1)


KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements"),
    "dy_stride_ignored": Kernel("strides", "dy is read with the strides of gate", "OutOfBounds|values: "),
    "sums_into_dup": Kernel("accumulator", "dup is added to what was in memory", "."),
}


def _stepping(
    gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu", fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, cols = shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    dgate, dup = (torch.empty((rows, cols), dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        operands = (flat(gate), *gate.stride(), flat(up), *up.stride(), flat(dy), *dy.stride(), dgate, dup)
        launch(Fault, fault, _stepping_kernel, -(-dup.numel() // 512), 128, *operands, np.int32(number(activation)))
    return dgate, dup


plant_kernels(globals(), _stepping, KERNELS, "stepping", "dup_from_dgate", "dy_stride_ignored", "sums_into_dup")
