"""Wrong kernels of reduce_rows: a thread to an output, and blocks that share the reduced axis."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends.signatures.reduce_rows import checked
from touchstone.conformance.faults import plant_kernels
from touchstone.conformance.faults.numba._launching import launch
from touchstone.conformance.faults.reduce_rows import KERNELS

_INF = np.float32(math.inf)


class Fault(IntEnum):
    none = 0
    no_barrier = 1
    padding_is_0 = 2
    nan_dropped = 3
    outputs_unguarded = 4
    empty_parts_unwritten = 5


@cuda.jit(device=True)
def _pick(a, b, function, fault):
    if function == 0:
        return a + b
    if fault == Fault.nan_dropped:
        return max(a, b) if function == 1 else min(a, b)
    ahead = a > b if function == 1 else a < b
    return a if ahead or a != a else b


@cuda.jit(device=True)
def _neutral(function):
    return float32(0) if function == 0 else -_INF if function == 1 else _INF


@cuda.jit
def _parts_kernel(x, results, function, fault):
    # A block is 32 outputs by 2 threads that share each; block (·, part) leaves its results in results[part].
    held = cuda.shared.array((2, 32), float32)
    lane, half, part = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.y
    output, each = cuda.blockIdx.x * 32 + lane, x.shape[1]
    length = -(-each // results.shape[0])
    if fault == Fault.empty_parts_unwritten and part * length >= each:
        return
    inside = output < x.shape[0] or fault == Fault.outputs_unguarded
    value = float32(0) if fault == Fault.padding_is_0 else _neutral(function)
    if inside:
        for i in range(part * length + half, min(each, (part + 1) * length), 2):
            value = _pick(value, float32(x[output, i]), function, fault)
    held[half, lane] = value
    if fault != Fault.no_barrier:
        cuda.syncthreads()
    if half == 0 and inside:
        results[part, output] = _pick(value, held[1, lane], function, fault)


@cuda.jit
def _finish_kernel(results, y, function, fault):
    output = cuda.grid(1)
    if output < y.shape[0]:
        value = _neutral(function)
        for part in range(results.shape[0]):
            value = _pick(value, results[part, output], function, fault)
        y[output] = value


def _parts(x: torch.Tensor, *, axis: int = -1, function: str = "sum", fault: str = "none") -> torch.Tensor:
    seen, number = checked(x, axis, function)
    outputs = len(seen)
    y, results = x.new_empty(outputs), x.new_empty((3, outputs), dtype=torch.float32)
    if outputs:
        across = -(-outputs // 32)
        launch(Fault, fault, _parts_kernel, (across, 3), (32, 2), seen, results, np.int32(number))
        launch(Fault, fault, _finish_kernel, across, 32, results, y, np.int32(number))
    return y


plant_kernels(
    globals(),
    _parts,
    KERNELS,
    "parts",
    "no_barrier",
    "padding_is_0",
    "nan_dropped",
    "outputs_unguarded",
    "empty_parts_unwritten",
)
