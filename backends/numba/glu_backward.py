"""Gradients of y = act(gate)·up: dgate = dy·up·act'(gate), dup = dy·act(gate).

naive: an element to a thread, at any stride; gate is read once for both gradients [shazeer2020]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
"""

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends import shapes
from touchstone.backends.numba.lib.activations import activate, number, slope
from touchstone.backends.numba.lib.pointwise import LANES, THREADS, in_lines, load_line, place_of_vector, store_line
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.variants import variant

Gradients = tuple[torch.Tensor, torch.Tensor]


@cuda.jit
def _naive(gate, up, dy, dgate, dup, activation):
    i, cols = uint64(cuda.grid(1)), uint64(dup.shape[1])
    if i < uint64(dup.shape[0]) * cols:
        row, col = i // cols, i % cols
        g, upstream = float32(gate[row, col]), float32(dy[row, col])
        dgate[row, col] = upstream * float32(up[row, col]) * slope(g, activation)
        dup[row, col] = upstream * activate(g, activation)


@variant()
def naive(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [shazeer2020]."""
    shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    kind = number(activation)
    dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        grid = checked_grid(-(-dup.numel() // THREADS))
        launch(_naive, grid, THREADS, gate, up, dy, dgate, dup, np.int32(kind))
    return dgate, dup


@cuda.jit
def _vectorised(gate, up, dy, dgate, dup, activation, wide):
    # Lines are rows, or all rows one behind the other.
    g, u = cuda.local.array(LANES, float32), cuda.local.array(LANES, float32)
    upstream = cuda.local.array(LANES, float32)
    row, col = place_of_vector(dup)
    if row >= uint64(dup.shape[0]):
        return
    load_line(gate, row, col, g, wide)
    load_line(up, row, col, u, wide)
    load_line(dy, row, col, upstream, wide)
    for i in range(lanes_of(dup)):
        u[i] *= upstream[i] * slope(g[i], activation)
        g[i] = upstream[i] * activate(g[i], activation)
    store_line(u, dgate, row, col, wide)
    store_line(g, dup, row, col, wide)


@variant()
def vectorised(gate: torch.Tensor, up: torch.Tensor, dy: torch.Tensor, *, activation: str = "silu") -> Gradients:
    """gate, up and dy (rows, cols) -> dgate, dup (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    shapes("rows cols, rows cols, rows cols", gate=gate, up=up, dy=dy)
    kind = number(activation)
    dgate, dup = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    if dup.numel():
        lines = in_lines(gate, up, dy, dgate, dup)
        launch(_vectorised, lines.grid, THREADS, *lines.matrices, np.int32(kind), lines.wide)
    return dgate, dup
