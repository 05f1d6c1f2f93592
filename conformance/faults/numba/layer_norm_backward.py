"""Wrong kernels of layer_norm_backward: blocks walk over the rows and add dweight and dbias up by atomics."""

import math
from enum import IntEnum
from functools import partial

import numpy as np
import torch
from numba import cuda, float32, int32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, mutant, plant_kernels
from touchstone.conformance.faults.layer_norm_backward import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import flat, launch

_ALL = 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    sums_without_atomic = 1
    reduction_buffer_reused = 2
    last_rows_dropped = 3
    mean_gradient_left_out = 4
    sums_float16 = 5
    rstd_stride_ignored = 6
    dweight_of_first_rows = 7
    no_threadfence = 8
    part_too_many = 9
    ticket_of_each_thread = 10


@cuda.jit(device=True)
def _total(value, fault):
    """Over a block of 32 or 96 threads; every thread gets the result."""
    partials = cuda.shared.array(3, float32)
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(_ALL, value, step)
        step //= 2
    if cuda.laneid == 0:
        partials[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    value = partials[0]
    if cuda.blockDim.x > 32:
        value += partials[1] + partials[2]
    if fault != Fault.reduction_buffer_reused:
        cuda.syncthreads()
    return value


@cuda.jit
def _atomics_kernel(
    x,
    x_row,
    x_col,
    weight,
    w_col,
    dy,
    dy_row,
    dy_col,
    mean,
    mean_row,
    has_mean,
    rstd,
    rstd_row,
    has_rstd,
    dx,
    sums,
    eps,
    fault,
):
    rows, cols = dx.shape
    if fault == Fault.last_rows_dropped:
        rows = rows // cuda.gridDim.x * cuda.gridDim.x
    count = float32(cols)
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        total = float32(0)
        for i in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            total += float32(x[row * x_row + i * x_col])
        centre = _total(total, fault) / count
        if has_mean:
            centre = mean[row * mean_row]
        square = float32(0)
        for i in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            centred = float32(x[row * x_row + i * x_col]) - centre
            square += centred * centred
        variance = _total(square, fault) / count
        factor = float32(1) / math.sqrt(variance + eps)
        if has_rstd:
            factor = rstd[row * (1 if fault == Fault.rstd_stride_ignored else rstd_row)]
        shift, dot = float32(0), float32(0)
        for i in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            normed = (float32(x[row * x_row + i * x_col]) - centre) * factor
            slope = float32(dy[row * dy_row + i * dy_col])
            g = slope * float32(weight[i * w_col])
            shift += g
            dot += g * normed
            if fault == Fault.sums_float16:
                shift, dot = float32(float16(shift)), float32(float16(dot))
            if fault == Fault.sums_without_atomic:
                sums[0, i] += slope * normed
            elif fault != Fault.dweight_of_first_rows or row < cuda.gridDim.x:
                cuda.atomic.add(sums, (0, i), slope * normed)
            cuda.atomic.add(sums, (1, i), slope)
        shift, dot = _total(shift, fault) / count, _total(dot, fault) / count
        if fault == Fault.mean_gradient_left_out:
            shift = float32(0)
        for i in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            normed = (float32(x[row * x_row + i * x_col]) - centre) * factor
            g = float32(dy[row * dy_row + i * dy_col]) * float32(weight[i * w_col])
            dx[row, i] = factor * (g - shift - normed * dot)


@cuda.jit
def _rounded_kernel(sums, dweight, dbias, fault):
    i = cuda.grid(1)
    if i < dweight.shape[0]:
        dweight[i] = sums[0, i]
        dbias[i] = sums[1, i]


def _operands(x, weight, dy, mean, rstd) -> tuple:
    """The operands with their strides, and mean and rstd with whether they were given too."""
    found = flat(x), *x.stride(), flat(weight), weight.stride(0), flat(dy), *dy.stride()
    for given in (mean, rstd):
        one = torch.empty((1,), dtype=torch.float32, device=x.device) if given is None else given
        found += flat(one), one.stride(0), given is not None
    return found


KERNELS = SHARED | {
    "atomics": Kernel("known-good", "blocks walk over the rows and add dweight and dbias up by float32 atomics"),
    "sums_without_atomic": Kernel(
        "race", "blocks add to the sums of dweight by `+=`, a load and a store: updates get lost", "RaceCondition"
    ),
    "sums_of_empty": Kernel("accumulator", "blocks add dweight and dbias to memory that nothing has set to 0"),
    "dweight_of_first_rows": Kernel("tail", "a block adds only its first row to dweight"),
    "sums_float16": Kernel("precision", "a thread adds its part of the means over a row in float16"),
    "tickets": Kernel(
        "known-good", "one thread per row for dx; the last block to finish sums what each has of dweight and dbias"
    ),
    "no_threadfence": Kernel(
        "race",
        "no threadfence before a block says that it has finished: the last block may not see the others' sums",
        "RaceCondition",
    ),
}


def _atomics(
    x, weight, dy, *, mean=None, rstd=None, eps: float = 1e-5, fault: str = "none", kept: dict | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec = "rows cols, cols, rows cols, rows:float32?, rows:float32?"
    rows, cols = shapes(spec, x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (torch.zeros((cols,), dtype=x.dtype, device=x.device) for _ in range(2))
    if dx.numel():
        allocate = torch.empty if fault == "sums_of_empty" else torch.zeros
        sums = allocate((2, cols), dtype=torch.float32, device=x.device)
        if kept is not None:
            sums = kept.setdefault(cols, sums)
        operands = _operands(x, weight, dy, mean, rstd)
        threads = 32 if cols <= 32 else 96
        launch(Fault, fault, _atomics_kernel, min(rows, 3), threads, *operands, dx, sums, np.float32(eps))
        launch(Fault, fault, _rounded_kernel, -(-cols // 128), 128, sums, dweight, dbias)
    return dx, dweight, dbias


plant_kernels(globals(), _atomics, KERNELS, "atomics", "sums_without_atomic", "sums_of_empty", deterministic=False)


@mutant("cache", found="repeat", stateful=True, deterministic=False)
def sums_kept():
    """the sums of dweight and dbias are kept between calls, and only the first call finds them zero"""
    kept: dict = {}
    return partial(_atomics, kept=kept)


plant_kernels(
    globals(),
    _atomics,
    KERNELS,
    "reduction_buffer_reused",
    "last_rows_dropped",
    "dweight_of_first_rows",
    "mean_gradient_left_out",
    "sums_float16",
    "rstd_stride_ignored",
    deterministic=False,
)


@cuda.jit
def _thread_kernel(
    x,
    x_row,
    x_col,
    weight,
    w_col,
    dy,
    dy_row,
    dy_col,
    mean,
    mean_row,
    has_mean,
    rstd,
    rstd_row,
    has_rstd,
    dx,
    statistics,
    eps,
    fault,
):
    # One thread per row; mean and rstd go to `statistics` (2, rows).
    row, cols, count = cuda.grid(1), dx.shape[1], float32(dx.shape[1])
    if row >= dx.shape[0]:
        return
    total, square, shift, dot = float32(0), float32(0), float32(0), float32(0)
    for col in range(cols):
        total += float32(x[row * x_row + col * x_col])
    centre = mean[row * mean_row] if has_mean else total / count
    for col in range(cols):
        g = float32(dy[row * dy_row + col * dy_col]) * float32(weight[col * w_col])
        centred = float32(x[row * x_row + col * x_col]) - centre
        square += centred * centred
        shift += g
        dot += g * centred
    factor = rstd[row * rstd_row] if has_rstd else float32(1) / math.sqrt(square / count + eps)
    for col in range(cols):
        g = float32(dy[row * dy_row + col * dy_col]) * float32(weight[col * w_col])
        normed = (float32(x[row * x_row + col * x_col]) - centre) * factor
        dx[row, col] = factor * (g - shift / count - normed * (dot * factor / count))
    statistics[0, row] = centre
    statistics[1, row] = factor


@cuda.jit
def _tickets_kernel(x, x_row, x_col, dy, dy_row, dy_col, statistics, parts, done, dweight, dbias, fault):
    # Blocks walk over the rows, each with a part of its own; the last to finish sums the parts. `done` is 0.
    ticket = cuda.shared.array(1, int32)
    part, cols = cuda.blockIdx.x, dweight.shape[0]
    for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
        dw, db = float32(0), float32(0)
        for row in range(part, statistics.shape[1], cuda.gridDim.x):
            slope = float32(dy[row * dy_row + col * dy_col])
            dw += slope * (float32(x[row * x_row + col * x_col]) - statistics[0, row]) * statistics[1, row]
            db += slope
        parts[0, part, col] = dw
        parts[1, part, col] = db
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 or fault == Fault.ticket_of_each_thread:
        if fault != Fault.no_threadfence:
            cuda.threadfence()
        mine = cuda.atomic.add(done, 0, 1)
        if cuda.threadIdx.x == 0:
            ticket[0] = mine
        if fault != Fault.no_threadfence:
            cuda.threadfence()
    cuda.syncthreads()
    if ticket[0] != cuda.gridDim.x - 1:
        return
    for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
        dw, db = float32(0), float32(0)
        for other in range(cuda.gridDim.x + (1 if fault == Fault.part_too_many else 0)):
            dw += parts[0, other, col]
            db += parts[1, other, col]
        dweight[col] = dw
        dbias[col] = db


def _tickets(
    x, weight, dy, *, mean=None, rstd=None, eps: float = 1e-5, fault: str = "none"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec = "rows cols, cols, rows cols, rows:float32?, rows:float32?"
    rows, cols = shapes(spec, x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (torch.zeros((cols,), dtype=x.dtype, device=x.device) for _ in range(2))
    if dx.numel():
        statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
        operands = _operands(x, weight, dy, mean, rstd)
        launch(Fault, fault, _thread_kernel, -(-rows // 32), 32, *operands, dx, statistics, np.float32(eps))
        blocks = min(rows, 3)
        parts = torch.empty((2, blocks, cols), dtype=torch.float32, device=x.device)
        done = torch.zeros((1,), dtype=torch.int32, device=x.device)
        walked = flat(x), *x.stride(), flat(dy), *dy.stride()
        launch(Fault, fault, _tickets_kernel, blocks, 64, *walked, statistics, parts, done, dweight, dbias)
    return dx, dweight, dbias


plant_kernels(globals(), _tickets, KERNELS, "tickets", "no_threadfence", "part_too_many", "ticket_of_each_thread")
