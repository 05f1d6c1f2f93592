"""y = a + b or a·b of two tensors of one shape, whatever its rank.

naive: an element to a thread, and as many threads as there are elements [cuda2025]
gridstride: as many blocks as run at once step through the elements: no block starts and ends for 256 of them [cuda2025]
vectorised: eight neighbours of 16 bits or four of 32 to a thread, in accesses of 16 bytes where all is aligned
            [xlite2025]
"""

from typing import Any

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends.numba.lib.pointwise import (
    LANES,
    THREADS,
    in_lines,
    load_line,
    place_of_vector,
    resident,
    store_line,
)
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.lib.vector_io import lanes_of
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.elementwise import FUNCTIONS, checked_output, in_four_axes
from touchstone.backends.variants import variant


@cuda.jit(device=True)
def _combine(a, b, function):
    return a + b if function == 0 else a * b


@cuda.jit(device=True)
def _one_element(a, b, y, i, function):
    """The element number i of tensors of four axes."""
    last = i % uint64(y.shape[3])
    i //= uint64(y.shape[3])
    third = i % uint64(y.shape[2])
    i //= uint64(y.shape[2])
    at = (i // uint64(y.shape[1]), i % uint64(y.shape[1]), third, last)
    y[at] = _combine(float32(a[at]), float32(b[at]), function)


@cuda.jit(device=True)
def _size(y):
    return uint64(y.shape[0]) * uint64(y.shape[1]) * uint64(y.shape[2]) * uint64(y.shape[3])


@cuda.jit
def _naive(a, b, y, function):
    i = uint64(cuda.grid(1))
    if i < _size(y):
        _one_element(a, b, y, i, function)


@variant()
def naive(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides. Source: [cuda2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        _scalars(_naive, a, b, y, function, checked_grid(-(-y.numel() // THREADS)))
    return y


@cuda.jit
def _gridstride(a, b, y, function):
    i = uint64(cuda.grid(1))
    while i < _size(y):
        _one_element(a, b, y, i, function)
        i += uint64(cuda.gridsize(1))


@variant()
def gridstride(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides. Source: [cuda2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        _stepping(a, b, y, function)
    return y


@cuda.jit
def _vectorised(a, b, y, function, wide):
    # Lines are rows, or all rows one behind the other.
    left, right = cuda.local.array(LANES, float32), cuda.local.array(LANES, float32)
    row, col = place_of_vector(y)
    if row >= uint64(y.shape[0]):
        return
    load_line(a, row, col, left, wide)
    load_line(b, row, col, right, wide)
    for i in range(lanes_of(y)):
        left[i] = _combine(left[i], right[i], function)
    store_line(left, y, row, col, wide)


@variant()
def vectorised(a: torch.Tensor, b: torch.Tensor, *, function: str = "add") -> torch.Tensor:
    """a and b of any one shape -> y of that shape. Any strides; where elements of more than two axes lie apart, as in
    `gridstride`. Source: [xlite2025]."""
    y = checked_output(a, b, function)
    if y.numel():
        ((*views,), *others) = in_four_axes(a, b, y)
        if others or views[0].shape[0] * views[0].shape[1] > 1:
            _stepping(a, b, y, function)
            return y
        lines = in_lines(*(view[0, 0] for view in views))
        launch(_vectorised, lines.grid, THREADS, *lines.matrices, np.int32(FUNCTIONS.index(function)), lines.wide)
    return y


def _stepping(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, function: str) -> None:
    _scalars(_gridstride, a, b, y, function, min(resident(a, 8), -(-y.numel() // THREADS)))


def _scalars(kernel: Any, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, function: str, blocks: int) -> None:
    for views in in_four_axes(a, b, y):
        launch(kernel, blocks, THREADS, *views, np.int32(FUNCTIONS.index(function)))
