#include "reductions.cuh"

// Over all elements of a thread, which are a grid apart.
__device__ inline float of_thread(const ELEMENT* x, long long first, long long n, long long step, int function) {
    float value = neutral(function);
    for (long long i = first + blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        value = combine(value, to_float(x[i * step]), function);
    return value;
}

// A tree in shared memory, as before.
extern "C" __global__ void reduce_gridstride(const ELEMENT* x, float* results, long long n, long long step,
                                             int function) {
    __shared__ float held[256];
    const int t = threadIdx.x;
    held[t] = of_thread(x, 0, n, step, function);
    __syncthreads();
#pragma unroll
    for (int half = 128; half > 0; half /= 2) {
        if (t < half) held[t] = combine(held[t], held[t + half], function);
        __syncthreads();
    }
    if (t == 0) results[blockIdx.x] = held[0];
}

extern "C" __global__ void reduce_shuffle(const ELEMENT* x, float* results, long long n, long long step,
                                          int function) {
    const float value = block_reduce(of_thread(x, 0, n, step, function), function);
    if (threadIdx.x == 0) results[blockIdx.x] = value;
}

// `total`: of a sum the bits of a float, of an extreme its key.
extern "C" __global__ void reduce_atomics(const ELEMENT* x, int* total, long long n, long long step, int function) {
    const float value = block_reduce(of_thread(x, 0, n, step, function), function);
    if (threadIdx.x > 0) return;
    if (function == add)
        atomicAdd(reinterpret_cast<float*>(total), value);
    else if (function == larger)
        atomicMax(total, key_of(value, function));
    else
        atomicMin(total, key_of(value, function));
}

#ifdef VECTOR
// VECTOR is 1 for any stride, or what 16 bytes hold: then x begins at a multiple of 16 bytes and has stride 1.
extern "C" __global__ void reduce_vectorised(const ELEMENT* x, float* results, long long n, long long step,
                                             int function) {
    float value = neutral(function);
#if VECTOR > 1
    const long long rest = n / VECTOR * VECTOR;
    for (long long i = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * VECTOR; i < rest;
         i += (long long)gridDim.x * blockDim.x * VECTOR) {
        float values[VECTOR];
        load16(x + i, values);
#pragma unroll
        for (int lane = 0; lane < VECTOR; ++lane) value = combine(value, values[lane], function);
    }
#else
    const long long rest = 0;
#endif
    value = block_reduce(combine(value, of_thread(x, rest, n, step, function), function), function);
    if (threadIdx.x == 0) results[blockIdx.x] = value;
}
#endif

// One thread.
extern "C" __global__ void reduce_store(const float* last, ELEMENT* y) { *y = from_float<ELEMENT>(*last); }

extern "C" __global__ void reduce_store_total(const int* total, ELEMENT* y, int function) {
    *y = from_float<ELEMENT>(function == add ? __int_as_float(*total) : of_key(*total));
}
