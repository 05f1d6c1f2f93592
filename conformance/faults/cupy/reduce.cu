#include "reductions.cuh"

enum Fault {
    none,
    no_barrier,
    last_warp_without_barrier,
    padding_is_0,
    nan_dropped,
    first_load_twice,
    added_in_place,
    half_shuffle_mask,
};

__device__ float pick(float a, float b, int function, int fault) {
    if (fault != nan_dropped || function == add) return combine(a, b, function);
    return function == larger ? fmaxf(a, b) : fminf(a, b);
}

__device__ float loaded(const ELEMENT* x, int i, int n, long long step, int function, int fault) {
    if (i < n) return to_float(x[i * step]);
    return fault == padding_is_0 ? 0.0f : neutral(function);
}

// Blocks of 128 threads, two elements to a thread; block i leaves its result in results[i].
extern "C" __global__ void reduce_tree(const ELEMENT* x, float* results, int n, long long step, int function,
                                       int fault) {
    __shared__ float held[128];
    const int t = threadIdx.x, first = blockIdx.x * 256 + t;
    const int second = fault == first_load_twice ? first : first + 128;
    held[t] = pick(loaded(x, first, n, step, function, fault), loaded(x, second, n, step, function, fault), function,
                   fault);
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (t < half) held[t] = pick(held[t], held[t + half], function, fault);
        if (fault == no_barrier || (fault == last_warp_without_barrier && half <= 32)) continue;
        __syncthreads();
    }
    if (t == 0) results[blockIdx.x] = held[0];
}

// Blocks of one warp combine into `total`: of a sum the bits of a float, of an extreme its key.
extern "C" __global__ void reduce_atomic(const ELEMENT* x, int* total, int n, long long step, int function,
                                         int fault) {
    float value = neutral(function);
    for (int i = blockIdx.x * 32 + threadIdx.x; i < n; i += gridDim.x * 32)
        value = combine(value, to_float(x[i * step]), function);
    const unsigned lanes = fault == half_shuffle_mask ? 0xffffu : all_lanes;
    for (int apart = 16; apart > 0; apart /= 2)
        value = combine(value, __shfl_xor_sync(lanes, value, apart), function);
    if (threadIdx.x > 0) return;
    if (function == add && fault == added_in_place)
        *reinterpret_cast<float*>(total) += value;
    else if (function == add)
        atomicAdd(reinterpret_cast<float*>(total), value);
    else if (function == larger)
        atomicMax(total, key_of(value, function));
    else
        atomicMin(total, key_of(value, function));
}

extern "C" __global__ void reduce_finish(const float* results, ELEMENT* y, int count, int function, int fault) {
    float value = neutral(function);
    for (int i = 0; i < count; ++i) value = pick(value, results[i], function, fault);
    *y = from_float<ELEMENT>(value);
}

extern "C" __global__ void reduce_of_total(const int* total, ELEMENT* y, int function, int fault) {
    *y = from_float<ELEMENT>(function == add ? __int_as_float(*total) : of_key(*total));
}
