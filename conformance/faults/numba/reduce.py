"""Wrong kernels of reduce: a tree in shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32

from touchstone.backends.signatures.reduce import checked
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.numba._launching import launch
from touchstone.conformance.faults.reduce import KERNELS as SHARED

_INF = np.float32(math.inf)


class Fault(IntEnum):
    none = 0
    no_barrier = 1
    last_warp_without_barrier = 2
    padding_is_0 = 3
    nan_dropped = 4
    added_in_place = 5
    result_of_the_last_thread = 6


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


@cuda.jit(device=True)
def _tree_of(x, held, function, fault):
    """Of a block of 128 threads, an element to each; in held[0]."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.shape[0]:
        held[t] = float32(x[i])
    else:
        held[t] = float32(0) if fault == Fault.padding_is_0 else _neutral(function)
    cuda.syncthreads()
    half = 64
    while half > 0:
        if t < half:
            held[t] = _pick(held[t], held[t + half], function, fault)
        if not (fault == Fault.no_barrier or (fault == Fault.last_warp_without_barrier and half <= 32)):
            cuda.syncthreads()
        half //= 2


@cuda.jit
def _tree_kernel(x, results, function, fault):
    held = cuda.shared.array(128, float32)
    _tree_of(x, held, function, fault)
    if cuda.threadIdx.x == (127 if fault == Fault.result_of_the_last_thread else 0):
        results[cuda.blockIdx.x] = held[cuda.threadIdx.x]


@cuda.jit
def _finish_kernel(results, y, function, fault):
    value = _neutral(function)
    for i in range(results.shape[0]):
        value = _pick(value, results[i], function, fault)
    y[0] = value


@cuda.jit
def _sum_kernel(x, total, fault):
    held = cuda.shared.array(128, float32)
    _tree_of(x, held, 0, fault)
    if cuda.threadIdx.x == 0:
        if fault == Fault.added_in_place:
            total[0] += held[0]
        else:
            cuda.atomic.add(total, 0, held[0])


KERNELS = SHARED | {
    "result_of_the_last_thread": Kernel("accumulator", "the last thread stores what it holds, not the first")
}


def _tree(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    number, n = checked(x, function), x.numel()
    blocks = max(1, n // 128 if fault == "last_block_lost" else -(-n // 128))
    y, results = x.new_empty(()), x.new_empty(blocks, dtype=torch.float32)
    launch(Fault, fault, _tree_kernel, blocks, 128, x, results, np.int32(number))
    launch(Fault, fault, _finish_kernel, 1, 1, results, y[None], np.int32(number))
    return y


plant_kernels(
    globals(),
    _tree,
    KERNELS,
    "tree",
    "no_barrier",
    "last_warp_without_barrier",
    "padding_is_0",
    "nan_dropped",
    "last_block_lost",
    "result_of_the_last_thread",
)


def _atomic(x: torch.Tensor, *, function: str = "sum", fault: str = "none") -> torch.Tensor:
    if checked(x, function):
        return _tree(x, function=function)
    y, total = x.new_empty(()), torch.zeros(1)
    launch(Fault, fault, _sum_kernel, max(1, -(-x.numel() // 128)), 128, x, total)
    launch(Fault, fault, _finish_kernel, 1, 1, total, y[None], np.int32(0))
    return y


plant_kernels(globals(), _atomic, KERNELS, "added_in_place", deterministic=False)
