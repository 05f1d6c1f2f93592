#include "reductions.cuh"

// Blocks of 256 threads; block i leaves its result in results[i].
constexpr int threads = 256;

__device__ inline float loaded(const ELEMENT* x, long long i, long long n, long long step, int function) {
    return i < n ? to_float(x[i * step]) : neutral(function);
}

extern "C" __global__ void reduce_interleaved(const ELEMENT* x, float* results, long long n, long long step,
                                              int function) {
    __shared__ float held[threads];
    const int t = threadIdx.x;
    held[t] = loaded(x, (long long)blockIdx.x * threads + t, n, step, function);
    __syncthreads();
    for (int apart = 1; apart < threads; apart *= 2) {
        if (t % (2 * apart) == 0) held[t] = combine(held[t], held[t + apart], function);
        __syncthreads(); // the next step reads what other threads wrote
    }
    if (t == 0) results[blockIdx.x] = held[0];
}

extern "C" __global__ void reduce_strided(const ELEMENT* x, float* results, long long n, long long step,
                                          int function) {
    __shared__ float held[threads];
    const int t = threadIdx.x;
    held[t] = loaded(x, (long long)blockIdx.x * threads + t, n, step, function);
    __syncthreads();
    for (int apart = 1; apart < threads; apart *= 2) {
        const int place = 2 * apart * t;
        if (place < threads) held[place] = combine(held[place], held[place + apart], function);
        __syncthreads();
    }
    if (t == 0) results[blockIdx.x] = held[0];
}

// The first `half` threads fold the second half onto the first, down to `last`.
__device__ inline void fold(float* held, int half, int last, int function) {
    const int t = threadIdx.x;
    for (; half > last; half /= 2) {
        if (t < half) held[t] = combine(held[t], held[t + half], function);
        __syncthreads();
    }
}

extern "C" __global__ void reduce_sequential(const ELEMENT* x, float* results, long long n, long long step,
                                             int function) {
    __shared__ float held[threads];
    const int t = threadIdx.x;
    held[t] = loaded(x, (long long)blockIdx.x * threads + t, n, step, function);
    __syncthreads();
    fold(held, threads / 2, 0, function);
    if (t == 0) results[blockIdx.x] = held[0];
}

// Of two elements, `threads` apart.
__device__ inline float combined(const ELEMENT* x, long long n, long long step, int function) {
    const long long i = (long long)blockIdx.x * 2 * threads + threadIdx.x;
    return combine(loaded(x, i, n, step, function), loaded(x, i + threads, n, step, function), function);
}

extern "C" __global__ void reduce_firstadd(const ELEMENT* x, float* results, long long n, long long step,
                                           int function) {
    __shared__ float held[threads];
    const int t = threadIdx.x;
    held[t] = combined(x, n, step, function);
    __syncthreads();
    fold(held, threads / 2, 0, function);
    if (t == 0) results[blockIdx.x] = held[0];
}

// The last 64 words by one warp. Its lanes no longer run in step by themselves: __syncwarp, not volatile, orders them.
__device__ inline void fold_warp(float* held, int function) {
    const int t = threadIdx.x;
    if (t >= 32) return;
#pragma unroll
    for (int half = 32; half > 0; half /= 2) {
        const float value = combine(held[t], held[t + half], function);
        __syncwarp(); // all have read before any writes
        held[t] = value;
        __syncwarp();
    }
}

extern "C" __global__ void reduce_unrolled(const ELEMENT* x, float* results, long long n, long long step,
                                           int function) {
    __shared__ float held[threads];
    const int t = threadIdx.x;
    held[t] = combined(x, n, step, function);
    __syncthreads();
    fold(held, threads / 2, 32, function);
    fold_warp(held, function);
    if (t == 0) results[blockIdx.x] = held[0];
}

template <int half> __device__ inline void fold_block(float* held, int function) {
    if constexpr (half > 32) {
        const int t = threadIdx.x;
        if (t < half) held[t] = combine(held[t], held[t + half], function);
        __syncthreads();
        fold_block<half / 2>(held, function);
    } else {
        fold_warp(held, function);
    }
}

extern "C" __global__ void reduce_templated(const ELEMENT* x, float* results, long long n, long long step,
                                            int function) {
    __shared__ float held[threads];
    held[threadIdx.x] = combined(x, n, step, function);
    __syncthreads();
    fold_block<threads / 2>(held, function);
    if (threadIdx.x == 0) results[blockIdx.x] = held[0];
}
