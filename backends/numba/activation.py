"""y = act(x + bias), element by element; bias may be None.

uncoalesced: neighbouring threads have neighbouring rows, so that a warp touches 32 lines of memory at once [boehm2022]
naive: neighbouring threads have neighbouring columns [boehm2022]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
"""

from typing import Any

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

# Without a bias any vector takes its place, and has_bias is False.


@cuda.jit(device=True)
def _one_element(x, bias, y, row, col, has_bias, activation):
    value = float32(x[row, col])
    if has_bias:
        value += float32(bias[col])
    y[row, col] = activate(value, activation)


@cuda.jit
def _uncoalesced(x, bias, y, has_bias, activation):
    i, rows = uint64(cuda.grid(1)), uint64(x.shape[0])
    if i < rows * uint64(x.shape[1]):
        _one_element(x, bias, y, i % rows, i // rows, has_bias, activation)


@variant()
def uncoalesced(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [boehm2022]."""
    return _one_element_each(_uncoalesced, x, bias, activation)


@cuda.jit
def _naive(x, bias, y, has_bias, activation):
    i, cols = uint64(cuda.grid(1)), uint64(x.shape[1])
    if i < uint64(x.shape[0]) * cols:
        _one_element(x, bias, y, i // cols, i % cols, has_bias, activation)


@variant()
def naive(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [boehm2022]."""
    return _one_element_each(_naive, x, bias, activation)


def _one_element_each(kernel: Any, x: torch.Tensor, bias: torch.Tensor | None, activation: str) -> torch.Tensor:
    shapes("rows cols, cols?", x=x, bias=bias)
    kind = number(activation)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        vector = y[0] if bias is None else bias
        grid = checked_grid(-(-y.numel() // THREADS))
        launch(kernel, grid, THREADS, x, vector, y, bias is not None, np.int32(kind))
    return y


@cuda.jit
def _vectorised(x, bias, y, has_bias, activation, wide):
    # Lines of x and y are rows, which are as long as the bias, or all rows one behind the other.
    values = cuda.local.array(LANES, float32)
    row, col = place_of_vector(y)
    if row >= uint64(y.shape[0]):
        return
    load_line(x, row, col, values, wide)
    if has_bias:
        width = uint64(bias.shape[0])
        at = col % width
        for i in range(lanes_of(x)):
            values[i] += float32(bias[at])
            at += uint64(1)
            if at == width:
                at = uint64(0)
    activate_all(values, lanes_of(x), activation)
    store_line(values, y, row, col, wide)


@variant()
def vectorised(x: torch.Tensor, bias: torch.Tensor | None, *, activation: str = "gelu") -> torch.Tensor:
    """x (rows, cols), bias (cols,) or None -> y (rows, cols). Any sizes and strides. Source: [xlite2025]."""
    shapes("rows cols, cols?", x=x, bias=bias)
    kind = number(activation)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        lines = in_lines(x, y)
        vector = y[0] if bias is None else bias
        launch(
            _vectorised,
            lines.grid,
            THREADS,
            lines.matrices[0],
            vector,
            lines.matrices[1],
            bias is not None,
            np.int32(kind),
            lines.wide,
        )
    return y
