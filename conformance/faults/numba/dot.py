"""Wrong kernels of dot: partial sums that a second launch adds, and atomic additions."""

from enum import IntEnum

import torch
from numba import cuda, float32

from touchstone.backends import shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.dot import KERNELS as SHARED
from touchstone.conformance.faults.numba._launching import launch

_ALL = 0xFFFFFFFF


class Fault(IntEnum):
    none = 0
    no_barrier = 1
    half_of_a_warp = 2
    stride_of_a_block = 3
    added_in_place = 4
    tail_unmasked = 5
    first_thread_counts_twice = 6


@cuda.jit(device=True)
def _block_sum(value, fault):
    """Over a block of 64 threads, in every thread."""
    partials = cuda.shared.array(2, float32)
    step = 8 if fault == Fault.half_of_a_warp else 16
    while step > 0:
        value += cuda.shfl_down_sync(_ALL, value, step)
        step //= 2
    if cuda.laneid == 0:
        partials[cuda.threadIdx.x // 32] = value
    if fault != Fault.no_barrier:
        cuda.syncthreads()
    return partials[0] + partials[1]


@cuda.jit(device=True)
def _products(a, b, fault):
    step = cuda.blockDim.x if fault == Fault.stride_of_a_block else cuda.gridsize(1)
    end = -(-a.shape[0] // 32) * 32 if fault == Fault.tail_unmasked else a.shape[0]
    total = float32(0)
    for i in range(cuda.grid(1), end, step):
        total += float32(a[i]) * float32(b[i])
    if fault == Fault.first_thread_counts_twice and cuda.grid(1) == 0 and end > 0:
        total += float32(a[0]) * float32(b[0])
    return total


@cuda.jit
def _blocks_kernel(a, b, partials, fault):
    total = _block_sum(_products(a, b, fault), fault)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total


@cuda.jit
def _atomic_kernel(a, b, total, fault):
    own = _block_sum(_products(a, b, fault), fault)
    if cuda.threadIdx.x == 0:
        if fault == Fault.added_in_place:
            total[0] += own
        else:
            cuda.atomic.add(total, 0, own)


@cuda.jit
def _finish_kernel(partials, y, fault):
    total = float32(0)
    for i in range(partials.shape[0]):
        total += partials[i]
    y[0] = total


KERNELS = SHARED | {
    "first_thread_counts_twice": Kernel("accumulator", "the first product begins the sum and is added again")
}


def _blocks(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    shapes("n, n", a=a, b=b)
    y, partials = a.new_empty(()), a.new_empty(3, dtype=torch.float32)
    launch(Fault, fault, _blocks_kernel, 3, 64, a, b, partials)
    launch(Fault, fault, _finish_kernel, 1, 1, partials, y[None])
    return y


plant_kernels(
    globals(),
    _blocks,
    KERNELS,
    "blocks",
    "no_barrier",
    "half_of_a_warp",
    "stride_of_a_block",
    "tail_unmasked",
    "first_thread_counts_twice",
)


def _atomic(a: torch.Tensor, b: torch.Tensor, fault: str = "none") -> torch.Tensor:
    shapes("n, n", a=a, b=b)
    y, total = a.new_empty(()), torch.zeros(1)
    launch(Fault, fault, _atomic_kernel, 3, 64, a, b, total)
    launch(Fault, fault, _finish_kernel, 1, 1, total, y[None])
    return y


plant_kernels(globals(), _atomic, KERNELS, "added_in_place", deterministic=False)
