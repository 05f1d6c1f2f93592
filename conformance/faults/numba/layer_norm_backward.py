"""Wrong kernels of layer_norm_backward: blocks walk over the rows and add dweight and dbias up by atomics."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32
from numba.cuda.types import float16

from touchstone.backends import shapes
from touchstone.conformance.faults import known_good, mutant
from touchstone.conformance.faults.numba._launching import flat, launch

_ALL = 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    plain_add = 1
    buffer_reused = 2
    whole_turns = 3
    mean_gradient = 4
    narrow = 5
    rstd_stride = 6
    first_rows = 7
    no_threadfence = 8
    part_too_many = 9
    ticket_of_each_thread = 10


@cuda.jit(device=True)
def _total(value, fault):
    """Over a block of 96 threads; every thread gets the result."""
    partials = cuda.shared.array(3, float32)
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(_ALL, value, step)
        step //= 2
    if cuda.laneid == 0:
        partials[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    value = partials[0] + partials[1] + partials[2]
    if fault != Fault.buffer_reused:
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
    if fault == Fault.whole_turns:
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
            factor = rstd[row * (1 if fault == Fault.rstd_stride else rstd_row)]
        shift, dot = float32(0), float32(0)
        for i in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
            normed = (float32(x[row * x_row + i * x_col]) - centre) * factor
            slope = float32(dy[row * dy_row + i * dy_col])
            g = slope * float32(weight[i * w_col])
            shift += g
            dot += g * normed
            if fault == Fault.narrow:
                shift, dot = float32(float16(shift)), float32(float16(dot))
            if fault == Fault.plain_add:
                sums[0, i] += slope * normed
            elif fault != Fault.first_rows or row < cuda.gridDim.x:
                cuda.atomic.add(sums, (0, i), slope * normed)
            cuda.atomic.add(sums, (1, i), slope)
        shift, dot = _total(shift, fault) / count, _total(dot, fault) / count
        if fault == Fault.mean_gradient:
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


def _atomics(
    x, weight, dy, mean, rstd, eps: float, fault: str = "none", kept: dict | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec = "rows cols, cols, rows cols, rows:float32?, rows:float32?"
    rows, cols = shapes(spec, x=x, weight=weight, dy=dy, mean=mean, rstd=rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dweight, dbias = (torch.zeros((cols,), dtype=x.dtype, device=x.device) for _ in range(2))
    if dx.numel():
        allocate = torch.empty if fault == "empty" else torch.zeros
        sums = allocate((2, cols), dtype=torch.float32, device=x.device)
        if kept is not None:
            sums = kept.setdefault(cols, sums)
        operands = _operands(x, weight, dy, mean, rstd)
        launch(Fault, fault, _atomics_kernel, min(rows, 3), 96, *operands, dx, sums, np.float32(eps))
        launch(Fault, fault, _rounded_kernel, -(-cols // 128), 128, sums, dweight, dbias)
    return dx, dweight, dbias


@known_good(deterministic=False)
def atomics(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """blocks walk over the rows and add dweight and dbias up by float32 atomics"""
    return _atomics(x, weight, dy, mean, rstd, eps)


@mutant("race", deterministic=False)
def sums_without_atomic(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """blocks add to the sums of dweight by `+=`, a load and a store: updates get lost"""
    return _atomics(x, weight, dy, mean, rstd, eps, "plain_add")


@mutant("accumulator", deterministic=False)
def sums_of_empty(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """blocks add dweight and dbias to memory that nothing has set to 0"""
    return _atomics(x, weight, dy, mean, rstd, eps, "empty")


@mutant("cache", stateful=True, deterministic=False)
def sums_kept():
    """the sums of dweight and dbias are kept between calls, and only the first call finds them zero"""
    kept: dict = {}
    return lambda x, weight, dy, *, mean=None, rstd=None, eps=1e-5: _atomics(x, weight, dy, mean, rstd, eps, kept=kept)


@mutant("race", deterministic=False)
def reduction_buffer_reused(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """no barrier after a reduction: the next one overwrites partial sums that slower warps still read"""
    return _atomics(x, weight, dy, mean, rstd, eps, "buffer_reused")


@mutant("tail", deterministic=False)
def last_rows_dropped(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """rows beyond a multiple of the number of blocks are left out"""
    return _atomics(x, weight, dy, mean, rstd, eps, "whole_turns")


@mutant("tail", deterministic=False)
def dweight_of_first_rows(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """a block adds only its first row to dweight"""
    return _atomics(x, weight, dy, mean, rstd, eps, "first_rows")


@mutant("formula", deterministic=False)
def mean_gradient_left_out(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """dx lacks the mean of dy times weight"""
    return _atomics(x, weight, dy, mean, rstd, eps, "mean_gradient")


@mutant("precision", deterministic=False)
def sums_float16(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """a thread adds its part of the means over a row in float16"""
    return _atomics(x, weight, dy, mean, rstd, eps, "narrow")


@mutant("strides", deterministic=False)
def rstd_stride_ignored(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """the stride of a given rstd is taken to be 1"""
    return _atomics(x, weight, dy, mean, rstd, eps, "rstd_stride")


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
    x, weight, dy, mean, rstd, eps: float, fault: str = "none"
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


@known_good
def tickets(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """one thread per row for dx; the last block to finish sums what each has of dweight and dbias"""
    return _tickets(x, weight, dy, mean, rstd, eps)


@mutant("race")
def no_threadfence(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """no threadfence before a block says that it has finished: the last block may not see the others' sums"""
    return _tickets(x, weight, dy, mean, rstd, eps, "no_threadfence")


@mutant("bounds")
def part_too_many(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """the last block sums one part more than there are blocks"""
    return _tickets(x, weight, dy, mean, rstd, eps, "part_too_many")


@mutant("unwritten")
def ticket_of_each_thread(x, weight, dy, *, mean=None, rstd=None, eps=1e-5):
    """every thread of a block takes a ticket, so no block holds the last one: nothing sums the parts"""
    return _tickets(x, weight, dy, mean, rstd, eps, "ticket_of_each_thread")
