"""Gradients of y = act(x + bias): dx = dy·act'(x + bias), dbias = its sum over rows.

naive: dx by one thread per element, dbias by one thread per column, which computes its column again [hendrycks2016]
partials: one pass for both: a block of 32 columns sums some rows of them, one part each, and another launch adds the
          parts [hsu2024]
"""

import numpy as np
import torch
from numba import cuda, float32, uint64

from touchstone.backends.numba.lib.activations import number, slope
from touchstone.backends.numba.lib.pointwise import THREADS
from touchstone.backends.numba.lib.reductions import checked_grid
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.activation_backward import Gradients, checked_outputs, parts_of
from touchstone.backends.variants import variant

_WARPS = 8

# Without a bias any vector takes its place, and has_bias is False.


@cuda.jit(device=True)
def _gradient(x, bias, dy, row, col, has_bias, activation):
    z = float32(x[row, col])
    if has_bias:
        z += float32(bias[col])
    return float32(dy[row, col]) * slope(z, activation)


@cuda.jit
def _naive(x, bias, dy, dx, has_bias, activation):
    i, cols = uint64(cuda.grid(1)), uint64(x.shape[1])
    if i < uint64(x.shape[0]) * cols:
        dx[i // cols, i % cols] = _gradient(x, bias, dy, i // cols, i % cols, has_bias, activation)


@cuda.jit
def _columns(x, bias, dy, dbias, activation):
    col = uint64(cuda.grid(1))
    if col < uint64(x.shape[1]):
        total = float32(0)
        for row in range(x.shape[0]):
            total += _gradient(x, bias, dy, uint64(row), col, True, activation)
        dbias[col] = total


@variant()
def naive(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hendrycks2016].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        kind, vector = np.int32(number(activation)), dx[0] if bias is None else bias
        grid = checked_grid(-(-dx.numel() // THREADS))
        launch(_naive, grid, THREADS, x, vector, dy, dx, bias is not None, kind)
        if dbias is not None:
            launch(_columns, checked_grid(-(-x.shape[1] // THREADS)), THREADS, x, vector, dy, dbias, kind)
    return dx, dbias


@cuda.jit
def _partials(x, bias, dy, dx, partial, has_bias, activation):
    # A block (32, 8) has 32 columns and one part of the rows, whose warps take turns.
    sums = cuda.shared.array((_WARPS, 32), float32)
    rows, cols, parts = uint64(x.shape[0]), uint64(x.shape[1]), uint64(partial.shape[0])
    lane, warp = cuda.threadIdx.x, cuda.threadIdx.y
    part = uint64(cuda.blockIdx.x) % parts
    col = uint64(cuda.blockIdx.x) // parts * uint64(32) + uint64(lane)
    length = (rows + parts - uint64(1)) // parts
    total = float32(0)
    if col < cols:
        row, end = part * length + uint64(warp), min(part * length + length, rows)
        while row < end:
            gradient = _gradient(x, bias, dy, row, col, has_bias, activation)
            dx[row, col] = gradient
            total += gradient
            row += uint64(_WARPS)
    sums[warp, lane] = total
    cuda.syncthreads()
    if warp == 0 and col < cols:
        for other in range(1, _WARPS):
            total += sums[other, lane]
        partial[part, col] = total


@cuda.jit
def _sums(partial, dbias):
    col = uint64(cuda.grid(1))
    if col < uint64(partial.shape[1]):
        total = float32(0)
        for part in range(partial.shape[0]):
            total += partial[uint64(part), col]
        dbias[col] = total


@variant()
def partials(x: torch.Tensor, bias: torch.Tensor | None, dy: torch.Tensor, *, activation: str = "gelu") -> Gradients:
    """x, dy (rows, cols), bias (cols,) or None -> dx (rows, cols), dbias (cols,) or None. Any sizes and strides.

    Source: [hsu2024].
    """
    dx, dbias = checked_outputs(x, bias, dy, activation)
    if dx.numel():
        rows, cols = x.shape
        parts, tiles = parts_of(rows), -(-cols // 32)
        partial = torch.empty((parts, cols), dtype=torch.float32, device=x.device)
        kind, vector = np.int32(number(activation)), dx[0] if bias is None else bias
        grid = checked_grid(parts * tiles)
        launch(_partials, grid, (32, _WARPS), x, vector, dy, dx, partial, bias is not None, kind)
        if dbias is not None:
            launch(_sums, checked_grid(-(-cols // THREADS)), THREADS, partial, dbias)
    return dx, dbias
