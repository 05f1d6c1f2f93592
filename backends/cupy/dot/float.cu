#include "common.cuh"

// A grid of any size; block i leaves its sum in partials[i].
extern "C" __global__ void dot_shuffle(const ELEMENT* a, const ELEMENT* b, float* partials, long long n,
                                       long long a_step, long long b_step) {
    float sum = 0.0f;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        sum += to_float(a[i * a_step]) * to_float(b[i * b_step]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

#ifdef VECTOR
// VECTOR is 1 for any stride, or what 16 bytes hold: then both begin at a multiple of 16 bytes and have stride 1.
extern "C" __global__ void dot_vectorised(const ELEMENT* a, const ELEMENT* b, float* partials, long long n,
                                          long long a_step, long long b_step) {
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = (long long)gridDim.x * blockDim.x, vectors = n / VECTOR;
    float sum = 0.0f;
#if VECTOR > 1
    for (long long v = first; v < vectors; v += step) {
        float x[VECTOR], y[VECTOR];
        load16(a + v * VECTOR, x);
        load16(b + v * VECTOR, y);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sum += x[i] * y[i];
    }
    const long long rest = vectors * VECTOR;
#else
    const long long rest = 0;
#endif
    for (long long i = rest + first; i < n; i += step) sum += to_float(a[i * a_step]) * to_float(b[i * b_step]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
#endif

// One warp.
extern "C" __global__ void dot_finish(const float* partials, ELEMENT* y, int count) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 32) sum += partials[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *y = from_float<ELEMENT>(sum);
}
