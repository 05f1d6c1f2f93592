"""Sums, maxima and minima by a function that is known at the launch: 0 is sum, 1 max, 2 min."""

import math

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from touchstone.backends.numba.lib.vector_io import lanes_of, load_vector, unpacked

_INF = np.float32(math.inf)
_LARGEST, _LEAST, _ABSENT_SIGN = np.int32(2**31 - 1), np.int32(-(2**31)), np.int32(2**31 - 1)


@cuda.jit(device=True)
def neutral(function):
    """What changes nothing."""
    return float32(0) if function == 0 else -_INF if function == 1 else _INF


@cuda.jit(device=True)
def combine(a, b, function):
    """A NaN is kept, which Numba's max and min let go."""
    if function == 0:
        return a + b
    ahead = a > b if function == 1 else a < b
    return a if ahead or a != a else b


@cuda.jit(device=True)
def warp_combine(value, function):
    """Over the 32 lanes, in every lane."""
    step = 16
    while step > 0:
        value = combine(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, step), function)
        step //= 2
    return value


@cuda.jit(device=True)
def block_combine(value, function):
    """Over a one-dimensional block of whole warps, once a kernel; the result is that of the first warp's lanes."""
    partial = cuda.shared.array(32, float32)
    lane, warp = uint32(cuda.laneid), uint32(cuda.threadIdx.x // 32)
    value = warp_combine(value, function)
    if lane == uint32(0):
        partial[warp] = value
    cuda.syncthreads()
    if warp == uint32(0):
        value = partial[lane] if lane < uint32(cuda.blockDim.x // 32) else neutral(function)
        value = warp_combine(value, function)
    return value


@cuda.jit(device=True)
def of_thread(x, first, function):
    """Over the thread's elements of a vector, from `first` on and a grid apart."""
    step = uint64(cuda.gridDim.x) * uint64(cuda.blockDim.x)
    i = first + uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)
    value = neutral(function)
    while i < uint64(x.shape[0]):
        value = combine(value, float32(x[i]), function)
        i += step
    return value


@cuda.jit(device=True)
def of_thread_in_vectors(x, wide, function):
    """The same with whole vectors first, in one access each where `wide`, and then the elements that are left."""
    words = cuda.local.array(4, uint32)
    length = uint64(lanes_of(x))
    rest = uint64(x.shape[0]) // length * length
    step = uint64(cuda.gridDim.x) * uint64(cuda.blockDim.x) * length
    i = (uint64(cuda.blockIdx.x) * uint64(cuda.blockDim.x) + uint64(cuda.threadIdx.x)) * length
    value = neutral(function)
    while i < rest:
        load_vector(x, i, words, 0, wide)
        for lane in range(lanes_of(x)):
            value = combine(value, unpacked(words, lane, x), function)
        i += step
    return combine(value, of_thread(x, rest, function), function)


@cuda.jit(device=True)
def key_of(value, function):
    """An int32 in the order of the numbers, with NaN beyond the infinity that wins; backends/signatures/reduce.py."""
    if value != value:
        return _LARGEST if function == 1 else _LEAST
    bits = float32(value).view(np.int32)
    return bits ^ _ABSENT_SIGN if bits < int32(0) else bits


@cuda.jit(device=True)
def of_key(key):
    """The number of a key."""
    return int32(key ^ _ABSENT_SIGN if key < int32(0) else key).view(np.float32)
