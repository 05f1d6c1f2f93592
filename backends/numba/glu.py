"""y = act(gate)·up, element by element.

naive: an element to a thread, at any stride [shazeer2020]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned, also in
            the halves of a joined projection [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.activations import activate, activate_all, number
from touchstone.backends.numba.lib.pointwise import LANES, THREADS, in_lines, load_line, place_of_vector, store_line
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant


@cuda.jit
def _naive(gate, up, y, activation):
    i, cols = uint64(cuda.grid(1)), uint64(y.shape[1])
    if i < uint64(y.shape[0]) * cols:
        row, col = i // cols, i % cols
        y[row, col] = activate(float32(gate[row, col]), activation) * float32(up[row, col])


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides. Source: [shazeer2020]."""
    shapes("rows cols, rows cols", gate=gate, up=up)
    kind = number(activation)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if y.numel():
        launch(_naive, checked_grid(-(-y.numel() // THREADS)), THREADS, gate, up, y, np.int32(kind))
    return y


@cuda.jit
def _vectorised(gate, up, y, activation, wide):
    # Lines are rows, or all rows one behind the other.
    values, factors = cuda.local.array(LANES, float32), cuda.local.array(LANES, float32)
    row, col = place_of_vector(y)
    if row >= uint64(y.shape[0]):
        return
    load_line(gate, row, col, values, wide)
    load_line(up, row, col, factors, wide)
    activate_all(values, lanes_of(y), activation)
    for i in range(lanes_of(y)):
        values[i] *= factors[i]
    store_line(values, y, row, col, wide)


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, *, activation: str = "silu") -> torch.Tensor:
    """gate and up (rows, cols) -> y (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    shapes("rows cols, rows cols", gate=gate, up=up)
    kind = number(activation)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if y.numel():
        lines = in_lines(gate, up, y)
        launch(_vectorised, lines.grid, THREADS, *lines.matrices, np.int32(kind), lines.wide)
    return y
