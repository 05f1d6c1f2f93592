// Sums, maxima and minima by a function that is known at the launch: 0 is sum, 1 max, 2 min.
#pragma once
#include "common.cuh"

enum Function { add, larger, smaller };

// What changes nothing.
__device__ inline float neutral(int function) {
    return function == add ? 0.0f : function == larger ? -INFINITY : INFINITY;
}

// A NaN is kept.
__device__ inline float combine(float a, float b, int function) {
    if (function == add) return a + b;
    return (function == larger ? a > b : a < b) || a != a ? a : b;
}

// Every lane gets the same bits.
__device__ inline float warp_reduce(float value, int function) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = combine(value, __shfl_xor_sync(all_lanes, value, step), function);
    return value;
}

// Over a block along x, of a multiple of 32 threads; the result is that of the first warp's lanes.
__device__ inline float block_reduce(float value, int function) {
    __shared__ float partials[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    value = warp_reduce(value, function);
    if (lane == 0) partials[warp] = value;
    __syncthreads();
    if (warp == 0) value = warp_reduce(lane < blockDim.x / 32 ? partials[lane] : neutral(function), function);
    return value;
}

// Integers in the order of the numbers, with NaN beyond the infinity that wins; backends/signatures/reduce.py.
__device__ inline int key_of(float value, int function) {
    if (value != value) return function == larger ? 0x7fffffff : int(0x80000000);
    const int bits = __float_as_int(value);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

__device__ inline float of_key(int key) { return __int_as_float(key < 0 ? key ^ 0x7fffffff : key); }
