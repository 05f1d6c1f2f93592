"""Cross entropy: loss = (1 - eps)·(lse - z_y) + eps·(lse - mean z) + zeta·lse², and the sum or the mean of the rows'.

naive: one thread per row, two passes over its logits; neighbouring threads read addresses one row apart [milakov2018]
online: one block per row, whose threads merge their (m, l): a row of any length is read once [milakov2018]
vectorised: four loads of 16 bytes at once, and one new maximum for all that they bring [xlite2025]
"""

import math

import numpy as np
import torch
from numba import cuda, float32, uint32, uint64

from touchstone.backends.numba.lib.online import fold, log_sum, shift
from touchstone.backends.numba.lib.ptx import fast_exp
from touchstone.backends.numba.lib.reductions import (
    block_grid,
    block_sum,
    block_threads,
    checked_grid,
    row_max,
    row_sum,
    thread_grid,
)
from touchstone.backends.numba.lib.vector_io import lanes_of, load16, unpacked
from touchstone.backends.numba.lib.vector_rows import are_rows_aligned
from touchstone.backends.numba.runtime.launching import launch
from touchstone.backends.signatures.cross_entropy import checked_sizes, empty_loss, empty_losses
from touchstone.backends.variants import variant

_LOW, _ONE = np.float32(-math.inf), np.float32(1)


@cuda.jit(device=True)
def _loss(lse, total, picked, cols, smoothing, z_loss):
    # Without smoothing a sum of -inf must not count.
    smooth = smoothing * (lse - total / float32(cols)) if smoothing > float32(0) else float32(0)
    return (_ONE - smoothing) * (lse - picked) + smooth + z_loss * lse * lse


@cuda.jit
def _naive(z, target, losses, ignore_index, smoothing, z_loss):
    row = uint64(cuda.grid(1))
    if row >= uint64(z.shape[0]):
        return
    if target[row] == ignore_index:
        losses[row] = float32(0)
        return
    cols = uint64(z.shape[1])
    m, l, total = _LOW, float32(0), float32(0)
    col = uint64(0)
    while col < cols:
        value = float32(z[row, col])
        m = max(m, value)
        total += value
        col += uint64(1)
    # max keeps a number beside a NaN and exp does not: a NaN and a row of -inf reach the sum as NaN.
    col = uint64(0)
    while col < cols:
        l += math.exp(float32(z[row, col]) - m)
        col += uint64(1)
    picked = float32(z[row, uint64(target[row])])
    losses[row] = _loss(m + math.log(l), total, picked, cols, smoothing, z_loss)


@variant()
def naive(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes. Source: [milakov2018]."""
    rows, _ = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        options = (ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        launch(_naive, *thread_grid(rows), logits, target, losses, *options)
    return _reduced(losses, target, reduction, ignore_index)


@cuda.jit
def _online(z, target, losses, ignore_index, smoothing, z_loss):
    row, cols = uint64(cuda.blockIdx.x), uint64(z.shape[1])
    first, step = uint64(cuda.threadIdx.x), uint64(cuda.blockDim.x)
    if target[row] == ignore_index:
        if cuda.threadIdx.x == 0:
            losses[row] = float32(0)
        return  # the whole block
    m, l, total = _LOW, float32(0), float32(0)
    col = first
    while col < cols:
        value = float32(z[row, col])
        m, l = fold(m, l, value)
        total += value
        col += step
    # Not row_merge: NVVM refuses a kernel that calls row_sum, which has shared memory, and calls what calls it.
    top = row_max(m)
    l = row_sum(l * math.exp(m - shift(top)))
    total = row_sum(total)
    if cuda.threadIdx.x == 0:
        picked = float32(z[row, uint64(target[row])])
        losses[row] = _loss(log_sum(top, l), total, picked, cols, smoothing, z_loss)


@variant(needs="shuffles")
def online(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes. Source: [milakov2018]."""
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        options = (ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        launch(_online, *block_grid(rows, V), logits, target, losses, *options)
    return _reduced(losses, target, reduction, ignore_index)


@cuda.jit
def _vectorised(z, target, losses, ignore_index, smoothing, z_loss):
    # Rows are whole vectors.
    words = cuda.local.array(16, uint32)
    row, cols, lanes = uint64(cuda.blockIdx.x), uint64(z.shape[1]), uint64(lanes_of(z))
    step = uint64(cuda.blockDim.x) * lanes
    if target[row] == ignore_index:
        if cuda.threadIdx.x == 0:
            losses[row] = float32(0)
        return  # the whole block
    m, l, total = _LOW, float32(0), float32(0)
    col = uint64(cuda.threadIdx.x) * lanes
    while col < cols:
        for k in range(4):
            load16(z, (row, col + uint64(k) * step), words, 4 * k)
        before = m
        for k in range(4):
            if col + uint64(k) * step < cols:
                for i in range(lanes_of(z)):
                    m = max(m, unpacked(words, k * lanes_of(z) + i, z))
        l *= fast_exp(before - shift(m))
        for k in range(4):
            if col + uint64(k) * step < cols:
                for i in range(lanes_of(z)):
                    value = unpacked(words, k * lanes_of(z) + i, z)
                    l += fast_exp(value - shift(m))
                    total += value
        col += uint64(4) * step
    top = row_max(m)
    l = row_sum(l * math.exp(m - shift(top)))
    total = row_sum(total)
    if cuda.threadIdx.x == 0:
        picked = float32(z[row, uint64(target[row])])
        losses[row] = _loss(log_sum(top, l), total, picked, cols, smoothing, z_loss)


@variant(needs="shuffles")
def vectorised(logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0) -> torch.Tensor:
    """logits (rows, V), target (rows,) -> loss () or (rows,) float32, any number of classes.

    Rows that are not whole 16-byte vectors are read an element at a time. Source: [xlite2025].
    """
    rows, V = checked_sizes(logits, target, reduction, label_smoothing)
    losses = empty_losses(logits)
    if rows:
        options = (ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        if are_rows_aligned(logits):
            block = block_threads(-(-V // (2 * 16 // logits.element_size())), 512)
            launch(_vectorised, checked_grid(rows), block, logits, target, losses, *options)
        else:
            launch(_online, *block_grid(rows, V), logits, target, losses, *options)
    return _reduced(losses, target, reduction, ignore_index)


@cuda.jit
def _reduce(losses, target, loss, ignore_index, mean):
    # One block: the sum of all losses, by the number of rows that are not ignored if `mean`; NaN where there are none.
    rows, row = uint64(losses.shape[0]), uint64(cuda.threadIdx.x)
    total, kept = float32(0), float32(0)
    while row < rows:
        total += losses[row]
        kept += float32(0) if target[row] == ignore_index else _ONE
        row += uint64(cuda.blockDim.x)
    total = block_sum(total)
    kept = block_sum(kept)
    if cuda.threadIdx.x == 0:
        loss[()] = total / kept if mean else total


def _reduced(losses: torch.Tensor, target: torch.Tensor, reduction: str, ignore_index: int) -> torch.Tensor:
    if reduction == "none":
        return losses
    loss = empty_loss(losses, reduction)
    if len(losses):
        mean = reduction == "mean"
        launch(_reduce, 1, block_threads(len(losses)), losses, target, loss, ignore_index, mean)
    return loss
