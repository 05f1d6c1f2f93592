"""Wrong kernels of cross_entropy: a warp for each row, and one that adds the losses up."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int64

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.cross_entropy import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch

_ALL = 0xFFFFFFFF
_LOW, _ONE = np.float32(-3e38), np.float32(1)


class Fault(IntEnum):
    none = 0
    not_rescaled = 1
    counts_all_rows = 2
    strides_of_the_target = 3
    ignored_row_unwritten = 4
    steps_of_half = 5


@cuda.jit
def _rows_kernel(z, z_row, z_col, target, y_row, losses, cols, ignore_index, smoothing, z_loss, fault):
    row, lane = int64(cuda.blockIdx.x), cuda.laneid
    y = int64(target[row] if fault == Fault.strides_of_the_target else target[row * y_row])
    if y == ignore_index:
        if lane == 0 and fault != Fault.ignored_row_unwritten:
            losses[row] = float32(0)
        return
    m, l, total = _LOW, float32(0), float32(0)
    for col in range(lane, cols, 32):
        value = float32(z[row * z_row + col * z_col])
        larger = max(m, value)
        if fault != Fault.not_rescaled:
            l *= math.exp(m - larger)
        l += math.exp(value - larger)
        m = larger
        total += value
    step = 8 if fault == Fault.steps_of_half else 16
    while step > 0:
        other, sum = cuda.shfl_xor_sync(_ALL, m, step), cuda.shfl_xor_sync(_ALL, l, step)
        total += cuda.shfl_xor_sync(_ALL, total, step)
        larger = max(m, other)
        l = l * math.exp(m - larger) + sum * math.exp(other - larger)
        m = larger
        step //= 2
    if lane == 0:
        lse = m + math.log(l)
        smooth = smoothing * (lse - total / float32(cols)) if smoothing > float32(0) else float32(0)
        picked = float32(z[row * z_row + y * z_col])
        losses[row] = (_ONE - smoothing) * (lse - picked) + smooth + z_loss * lse * lse


@cuda.jit
def _total_kernel(losses, target, y_row, loss, ignore_index, mean, fault):
    total, kept = float32(0), float32(0)
    for row in range(cuda.laneid, losses.shape[0], 32):
        total += losses[row]
        if fault == Fault.counts_all_rows or target[row * y_row] != ignore_index:
            kept += _ONE
    step = 16
    while step > 0:
        total += cuda.shfl_xor_sync(_ALL, total, step)
        kept += cuda.shfl_xor_sync(_ALL, kept, step)
        step //= 2
    if cuda.laneid == 0:
        loss[0] = total / kept if mean else total


KERNELS = SHARED | {
    "steps_of_half": Kernel("tail", "the shuffles begin with a distance of 8, and the halves of a warp never meet")
}


def _rows(
    logits, target, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0, fault: str = "none"
) -> torch.Tensor:
    rows, V = shapes("rows V, rows:int64|int32", logits=logits, target=target)
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        options = (V, ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        memory = (flat(logits), *logits.stride(), flat(target), *target.stride(), losses)
        launch(Fault, fault, _rows_kernel, rows, 32, *memory, *options)
    if reduction == "none":
        return losses
    loss = torch.full((1,), float("nan") if reduction == "mean" else 0.0)
    if rows:
        operands = (losses, flat(target), *target.stride(), loss, ignore_index, reduction == "mean")
        launch(Fault, fault, _total_kernel, 1, 32, *operands)
    return loss[0]


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "not_rescaled",
    "counts_all_rows",
    "strides_of_the_target",
    "ignored_row_unwritten",
    "steps_of_half",
)
