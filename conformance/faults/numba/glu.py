"""Wrong kernels of glu: a few blocks step through the elements, which lie where the strides say."""

from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.backends.numba.lib.activations import activate, number
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.glu import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch


class Fault(IntEnum):
    none = 0
    row_of_up_ignored = 1
    act_of_up = 2
    act_float16 = 3
    index_from_one = 4


@cuda.jit
def _stepping_kernel(gate, gate_row, gate_col, up, up_row, up_col, y, activation, fault):
    rows, cols = y.shape
    i = cuda.grid(1)
    if fault == Fault.index_from_one:
        i += 1
    if fault == Fault.row_of_up_ignored:
        up_row = gate_row
    while i < rows * cols:
        row, col = i // cols, i % cols
        g, u = float32(gate[row * gate_row + col * gate_col]), float32(up[row * up_row + col * up_col])
        if fault == Fault.act_of_up:
            g, u = u, g
        opened = activate(g, activation)
        if fault == Fault.act_float16:
            opened = float32(float16(opened))
        y[row, col] = opened * u
        i += cuda.gridsize(1)


KERNELS = SHARED | {
    "stepping": Kernel("known-good", "a few blocks step through the elements"),
    "act_float16": Kernel("precision", "act(gate) passes through float16", dtypes=("float32",)),
    "index_from_one": Kernel("unwritten", "elements are counted from 1: the first is not written", "values: |repeat: "),
}


def _stepping(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu", fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols, rows cols", gate=gate, up=up)
    y = torch.empty((rows, cols), dtype=gate.dtype, device=gate.device)
    if y.numel():
        operands = (flat(gate), *gate.stride(), flat(up), *up.stride(), y, np.int32(number(activation)))
        launch(Fault, fault, _stepping_kernel, -(-y.numel() // 512), 128, *operands)
    return y


plant_kernels(
    globals(), _stepping, KERNELS, "stepping", "row_of_up_ignored", "act_of_up", "act_float16", "index_from_one"
)
