"""Backward of cross entropy: dz = ((1 + 2·zeta·lse)·p - (1 - eps)·1_y - eps/V)·g, p = exp(z - lse).

block: one block per row of any length; a pass over it for lse before, where that is not given [milakov2018]
vectorised: the same 16 bytes at a time [oneflow2021]
"""

import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.online import fold, log_sum, row_merge
from touchstone.backends.numba.lib.reductions import block_grid, block_sum, block_threads
from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, pack, store_vector, unpacked
from touchstone.backends.numba.lib.vector_rows import LANES, are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.cross_entropy_backward import checked_sizes, empty_gradient
from touchstone.backends.variants import variant

_LOW, _ONE, _TWO = np.float32(-math.inf), np.float32(1), np.float32(2)


@cuda.jit(device=True)
def _gradient(z, picked, cols, lse, g, smoothing, z_loss):
    p = math.exp(z - lse)
    of_class = _ONE - smoothing if picked else float32(0)
    return ((_ONE + _TWO * z_loss * lse) * p - of_class - smoothing / float32(cols)) * g


@cuda.jit
def _block(z, target, lse, given, g, dz, ignore_index, smoothing, z_loss):
    row, cols = uint64(cuda.blockIdx.x), uint64(z.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    ignored = target[row] == ignore_index
    of_row = lse[row] if given else float32(0)
    if not given and not ignored:  # the whole block
        m, l = _LOW, float32(0)
        col = first
        while col < cols:
            m, l = fold(m, l, float32(z[row, col]))
            col += step
        m, l = row_merge(m, l)
        of_row = log_sum(m, l)

    col = first
    while col < cols:
        if ignored:
            dz[row, col] = float32(0)
        else:
            picked = col == uint64(target[row])
            dz[row, col] = _gradient(float32(z[row, col]), picked, cols, of_row, g[row], smoothing, z_loss)
        col += step


@variant(needs="shuffles")
def block(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Source:
    [milakov2018]."""
    rows, V = checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    dlogits = empty_gradient(logits)
    if dlogits.numel():
        given, g = _of_rows(target, lse, dloss, reduction, ignore_index)
        options = (ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        launch(_block, *block_grid(rows, V), logits, target, *given, g, dlogits, *options)
    return dlogits


@cuda.jit
def _vectorised(z, target, lse, given, g, dz, ignore_index, smoothing, z_loss, wide):
    words = cuda.local.array(4, uint32)
    values = cuda.local.array(LANES, float32)
    row, cols, length = uint64(cuda.blockIdx.x), uint64(z.shape[1]), lanes_of(z)
    first, step = uint64(cuda.threadIdx.x * length), uint64(cuda.blockDim.x * length)
    ignored = target[row] == ignore_index
    of_row = lse[row] if given else float32(0)
    if not given and not ignored:  # the whole block
        m, l = _LOW, float32(0)
        col = first
        while col < cols:
            load_vector(z, (row, col), words, 0, wide)
            for i in range(length):
                if col + uint64(i) < cols:
                    m, l = fold(m, l, unpacked(words, i, z))
            col += step
        m, l = row_merge(m, l)
        of_row = log_sum(m, l)

    col = first
    while col < cols:
        load_vector(z, (row, col), words, 0, wide)
        for i in range(length):
            picked = col + uint64(i) == uint64(target[row])
            found = _gradient(unpacked(words, i, z), picked, cols, of_row, g[row], smoothing, z_loss)
            values[i] = float32(0) if ignored else found
        pack(values, words, 0, dz)
        store_vector(words, 0, dz, (row, col), wide)
        col += step


@variant(needs="shuffles")
def vectorised(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0
) -> torch.Tensor:
    """logits (rows, V), target (rows,), lse (rows,) or None, dloss () or (rows,) -> dlogits (rows, V). Rows that do not
    begin at multiples of 16 bytes move an element at a time. Source: [oneflow2021]."""
    rows, V = checked_sizes(logits, target, lse, dloss, reduction, label_smoothing)
    dlogits = empty_gradient(logits)
    if dlogits.numel():
        given, g = _of_rows(target, lse, dloss, reduction, ignore_index)
        wide = are_rows_aligned(logits) and are_rows_aligned(dlogits)
        options = (ignore_index, np.float32(label_smoothing), np.float32(z_loss), wide)
        size = block_threads(-(-V * logits.element_size() // 16))
        launch(_vectorised, block_grid(rows, 1)[0], size, logits, target, *given, g, dlogits, *options)
    return dlogits


@cuda.jit
def _scale(dloss, target, g, ignore_index):
    # One block: dloss by the number of rows that are not ignored.
    rows, row = uint64(target.shape[0]), uint64(cuda.threadIdx.x)
    kept = float32(0)
    while row < rows:
        kept += float32(0) if target[row] == ignore_index else _ONE
        row += uint64(cuda.blockDim.x)
    kept = block_sum(kept)
    if cuda.threadIdx.x == 0:
        g[0] = dloss[0] / kept


def _of_rows(target, lse, dloss, reduction, ignore_index) -> tuple[tuple[torch.Tensor, bool], torch.Tensor]:
    """lse, or any memory, and whether it is given; g of each row: with "mean" dloss by the rows not ignored, from the
    GPU."""
    rows = len(target)
    if reduction == "mean":
        g = torch.empty(1, dtype=torch.float32, device=dloss.device)
        launch(_scale, 1, block_threads(rows), dloss.reshape(1), target, g, ignore_index)
        dloss = g
    g = dloss.expand(rows)
    return (g if lse is None else lse, lse is not None), g
