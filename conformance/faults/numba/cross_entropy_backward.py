"""Wrong kernels of cross_entropy_backward: a thread for each row, after one that counts the rows that are kept."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.cross_entropy_backward import KERNELS
from touchstone.conformance.faults.numba._launching import flat, launch

_LOW, _ONE, _TWO = np.float32(-3e38), np.float32(1), np.float32(2)


class Fault(IntEnum):
    none = 0
    first_dloss = 1
    ignored_row_unwritten = 2
    strides_of_dloss = 3
    every_row_counts = 4


@cuda.jit
def _count_kernel(target, y_row, rows, kept, ignore_index, fault):
    count = float32(0)
    for row in range(rows):
        if fault == Fault.every_row_counts or target[row * y_row] != ignore_index:
            count += _ONE
    kept[0] = count


@cuda.jit
def _rows_kernel(z, z_row, z_col, target, y_row, g, g_row, dz, kept, mean, ignore_index, smoothing, z_loss, fault):
    row, rows, cols = cuda.grid(1), dz.shape[0], dz.shape[1]
    if row >= rows:
        return
    y = target[row * y_row]
    if y == ignore_index:
        for col in range(cols):
            if fault != Fault.ignored_row_unwritten:
                dz[row, col] = float32(0)
        return
    at = row * g_row
    if fault == Fault.first_dloss:
        at = 0
    elif fault == Fault.strides_of_dloss and g_row > 1:
        at = row
    scale = g[at]
    if mean:
        scale /= kept[0]
    m, l = _LOW, float32(0)
    for col in range(cols):
        m = max(m, float32(z[row * z_row + col * z_col]))
    for col in range(cols):
        l += math.exp(float32(z[row * z_row + col * z_col]) - m)
    lse = m + math.log(l)
    for col in range(cols):
        p = math.exp(float32(z[row * z_row + col * z_col]) - lse)
        picked = _ONE - smoothing if col == y else float32(0)
        dz[row, col] = ((_ONE + _TWO * z_loss * lse) * p - picked - smoothing / float32(cols)) * scale


def _rows(
    logits, target, lse, dloss, *, reduction="mean", ignore_index=-100, label_smoothing=0.0, z_loss=0.0,
    fault: str = "none"
) -> torch.Tensor:  # fmt: skip
    each = "rows" if reduction == "none" else "()"
    spec = f"rows V, rows:int64|int32, rows:float32?, {each}:float32"
    rows, V = shapes(spec, logits=logits, target=target, lse=lse, dloss=dloss)
    dlogits = torch.empty((rows, V), dtype=logits.dtype, device=logits.device)
    if rows:
        options = (reduction == "mean", ignore_index, np.float32(label_smoothing), np.float32(z_loss))
        memory = (flat(logits), *logits.stride(), flat(target), *target.stride())
        kept = torch.empty((1,), dtype=torch.float32, device=logits.device)
        of_rows = (flat(dloss), dloss.stride(0) if dloss.ndim else 0, dlogits, kept)
        launch(Fault, fault, _count_kernel, 1, 1, flat(target), *target.stride(), rows, kept, ignore_index)
        launch(Fault, fault, _rows_kernel, -(-rows // 32), 32, *memory, *of_rows, *options)
    return dlogits


plant_kernels(
    globals(), _rows, KERNELS, "rows", "first_dloss", "ignored_row_unwritten", "strides_of_dloss", "every_row_counts"
)
