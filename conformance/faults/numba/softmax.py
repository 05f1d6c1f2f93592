"""Wrong kernels of softmax: block reductions by shuffles, and by halves of a row in dynamic shared memory."""

import math
from enum import IntEnum

import numpy as np
import torch
from numba import cuda, float32, int32
from numba.cuda.types import float16

from touchstone.backends import Unsupported, shapes
from touchstone.conformance.faults import Kernel, plant_kernels
from touchstone.conformance.faults.numba._launching import flat, launch
from touchstone.conformance.faults.softmax import KERNELS as SHARED

_ALL = 0xFFFFFFFF
_HELD = 12000  # columns of a row in shared memory
_LOW = np.float32(-math.inf)


class Fault(IntEnum):
    none = 0
    maximum_from_zero = 1
    no_barrier_in_reduction = 2
    reduction_buffer_reused = 3
    partials_of_absent_warps = 4
    sum_in_first_lane = 5
    stride_of_block = 6
    narrow_exponentials = 7
    offset_int32 = 8
    column_stride_ignored = 9
    dynamic_arrays_overlap = 10
    syncwarp_for_syncthreads = 11
    early_return = 12
    store_unguarded = 13
    one_step = 14


@cuda.jit(device=True)
def _combined(a, b, maximum):
    return max(a, b) if maximum else a + b


@cuda.jit(device=True)
def _reduced(partials, value, maximum, fault):
    """Over a block of whole warps; every thread gets the result, and `partials` is free afterwards."""
    step = 16
    while step > 0:
        if fault == Fault.sum_in_first_lane and not maximum:
            value += cuda.shfl_down_sync(_ALL, value, step)
        else:
            value = _combined(value, cuda.shfl_xor_sync(_ALL, value, step), maximum)
        step //= 2
    if cuda.blockDim.x == 32:
        return value
    if cuda.laneid == 0:
        partials[cuda.threadIdx.x // 32] = value
    if fault != Fault.no_barrier_in_reduction:
        cuda.syncthreads()
    value = partials[0]
    for warp in range(1, 32 if fault == Fault.partials_of_absent_warps else cuda.blockDim.x // 32):
        value = _combined(value, partials[warp], maximum)
    if fault != Fault.reduction_buffer_reused:
        cuda.syncthreads()
    return value


@cuda.jit
def _rows_kernel(x, x_row, x_col, y, fault):
    # Blocks walk over the rows.
    partials = cuda.shared.array(32, float32)
    step = cuda.blockDim.x if fault == Fault.stride_of_block else cuda.gridDim.x
    if fault == Fault.column_stride_ignored:
        x_col = 1
    for row in range(cuda.blockIdx.x, y.shape[0], step):
        start = row * x_row
        if fault == Fault.offset_int32:
            start = int32(start)
        m = float32(0) if fault == Fault.maximum_from_zero else _LOW
        for col in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
            m = max(m, float32(x[start + col * x_col]))
        m = _reduced(partials, m, True, fault)
        l = float32(0)
        for col in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
            p = math.exp(float32(x[start + col * x_col]) - m)
            l += float32(float16(p)) if fault == Fault.narrow_exponentials else p
        l = _reduced(partials, l, False, fault)
        for col in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
            p = math.exp(float32(x[start + col * x_col]) - m)
            if fault == Fault.narrow_exponentials:
                p = float32(float16(p))
            y[row, col] = p / l


KERNELS = SHARED | {
    "maximum_from_zero": Kernel("mask", "the maximum starts at 0 instead of -inf"),
    "sum_in_first_lane": Kernel(
        "accumulator", "the sum of a warp by shfl_down_sync is taken from every lane, though only the first one has it"
    ),
    "stride_of_block": Kernel(
        "tail", "blocks step over the rows by the number of threads of a block instead of the number of blocks"
    ),
    "narrow_exponentials": Kernel("precision", "the exponentials pass through float16", dtypes=("float32",)),
    "offset_int32": Kernel("offset", "the offset of a row is kept in an int32, which wraps", "OutOfBounds"),
    "launch_order": Kernel(
        "shapes",
        "grid and block change places in the launch: blocks of up to four threads, which shuffle with lanes "
        "that do not exist",
        "InactiveLanes",
    ),
    "held": Kernel("known-good", "a block keeps its row in dynamic shared memory and reduces by halves"),
    "dynamic_arrays_overlap": Kernel("race", "two arrays in dynamic shared memory both begin where it begins"),
    "shared_memory_of_elements": Kernel(
        "bounds",
        "the launch asks for shared memory for a row of 16-bit elements, but the kernel keeps floats",
        "OutOfBounds",
        dtypes=("float16", "bfloat16"),
    ),
    "syncwarp_for_syncthreads": Kernel(
        "race", "a reduction over two warps waits for one warp only between its halves", "RaceCondition"
    ),
    "early_return": Kernel(
        "race", "threads without a column return before the barriers of the others", "UninitialisedShared"
    ),
    "store_unguarded": Kernel(
        "bounds",
        "every thread stores in every step, past the end of a row that is no multiple of the block",
        "OutOfBounds",
    ),
    "one_step": Kernel("tail", "a thread stores one column, and columns beyond the number of threads are not written"),
}


def _rows(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = min(32 * -(-cols // 32), 128)
        if fault == "ragged_warp":
            threads = min(cols, 127)
        grid, block = min(rows, 4), threads
        if fault == "launch_order":
            grid, block = block, grid
        launch(Fault, fault, _rows_kernel, grid, block, flat(x), *x.stride(), y)
    return y


plant_kernels(
    globals(),
    _rows,
    KERNELS,
    "rows",
    "maximum_from_zero",
    "no_barrier_in_reduction",
    "reduction_buffer_reused",
    "partials_of_absent_warps",
    "sum_in_first_lane",
    "stride_of_block",
    "narrow_exponentials",
    "offset_int32",
    "column_stride_ignored",
    "ragged_warp",
    "launch_order",
)


@cuda.jit(device=True)
def _halved(buffer, value, maximum, fault):
    """Over a block of a power of two threads, by halves; every thread gets the result, and `buffer` is free
    afterwards."""
    i, half = cuda.threadIdx.x, cuda.blockDim.x // 2
    buffer[i] = value
    cuda.syncthreads()
    while half > 0:
        if i < half:
            buffer[i] = _combined(buffer[i], buffer[i + half], maximum)
        if fault == Fault.syncwarp_for_syncthreads:
            cuda.syncwarp()
        else:
            cuda.syncthreads()
        half //= 2
    value = buffer[0]
    cuda.syncthreads()
    return value


@cuda.jit
def _held_kernel(x, x_row, x_col, y, fault):
    # One block per row, which it keeps in shared memory, before what the reductions need.
    shared = cuda.shared.array(0, float32)
    row, cols = cuda.blockIdx.x, y.shape[1]
    held, buffer = shared[:cols], shared[0 if fault == Fault.dynamic_arrays_overlap else cols :]
    if fault == Fault.early_return and cuda.threadIdx.x >= cols:
        return
    m = _LOW
    for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
        held[col] = float32(x[row * x_row + col * x_col])
        m = max(m, held[col])
    m = _halved(buffer, m, True, fault)
    l = float32(0)
    for col in range(cuda.threadIdx.x, cols, cuda.blockDim.x):
        held[col] = math.exp(held[col] - m)
        l += held[col]
    l = _halved(buffer, l, False, fault)

    end = cols
    if fault == Fault.one_step:
        end = min(cols, cuda.blockDim.x)
    if fault == Fault.store_unguarded:
        end = -(-cols // cuda.blockDim.x) * cuda.blockDim.x
    for col in range(cuda.threadIdx.x, end, cuda.blockDim.x):
        y[row, col] = held[min(col, cols - 1)] / l


def _held(x: torch.Tensor, fault: str = "none") -> torch.Tensor:
    rows, cols = shapes("rows cols", x=x)
    if cols > _HELD:
        raise Unsupported(f"{cols} columns; shared memory is asked to hold {_HELD}")
    y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
    if y.numel():
        threads = 96 if fault == "block_no_power_of_two" else 64
        shared = cols * (x.element_size() if fault == "shared_memory_of_elements" else 4) + 4 * threads
        launch(Fault, fault, _held_kernel, rows, threads, flat(x), *x.stride(), y, shared=shared)
    return y


plant_kernels(
    globals(),
    _held,
    KERNELS,
    "held",
    "dynamic_arrays_overlap",
    "shared_memory_of_elements",
    "syncwarp_for_syncthreads",
    "early_return",
    "store_unguarded",
    "one_step",
    "block_no_power_of_two",
)
