#include "common.cuh"

// A block is 32 lanes by some rows.
extern "C" __global__ void gemv_warp(const ELEMENT* a, const ELEMENT* x, ELEMENT* y, long long M, long long K,
                                     long long a_row, long long a_col, long long x_step) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= M) return;
    a += row * a_row;
    float sum = 0.0f;
    for (long long k = threadIdx.x; k < K; k += 32) sum += to_float(a[k * a_col]) * to_float(x[k * x_step]);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) y[row] = from_float<ELEMENT>(sum);
}

#ifdef VECTOR
// VECTOR is 1 for any stride, or what 16 bytes hold: then every row and x begin at a multiple of 16 bytes.
extern "C" __global__ void gemv_vectorised(const ELEMENT* a, const ELEMENT* x, ELEMENT* y, long long M, long long K,
                                           long long a_row, long long a_col, long long x_step) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= M) return;
    a += row * a_row;
    float sum = 0.0f;
#if VECTOR > 1
    const long long rest = K / VECTOR * VECTOR;
    for (long long k = threadIdx.x * VECTOR; k < rest; k += 32 * VECTOR) {
        float left[VECTOR], right[VECTOR];
        load16(a + k, left);
        load16(x + k, right);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sum += left[i] * right[i];
    }
#else
    const long long rest = 0;
#endif
    for (long long k = rest + threadIdx.x; k < K; k += 32) sum += to_float(a[k * a_col]) * to_float(x[k * x_step]);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) y[row] = from_float<ELEMENT>(sum);
}
#endif

// A block is 32 lanes by some pairs of rows; K is at most 16. All lanes shuffle, with or without a row.
extern "C" __global__ void gemv_tworows(const ELEMENT* a, const ELEMENT* x, ELEMENT* y, long long M, int K,
                                        long long a_row, long long a_col, long long x_step) {
    const long long row = 2 * ((long long)blockIdx.x * blockDim.y + threadIdx.y) + threadIdx.x / 16;
    const int k = threadIdx.x % 16;
    float sum = 0.0f;
    if (row < M && k < K) sum = to_float(a[row * a_row + k * a_col]) * to_float(x[k * x_step]);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
    if (row < M && k == 0) y[row] = from_float<ELEMENT>(sum);
}

// Block (row, split) leaves the sum of its columns in partials[split][row].
extern "C" __global__ void gemv_splitk(const ELEMENT* a, const ELEMENT* x, float* partials, long long M, long long K,
                                       long long a_row, long long a_col, long long x_step) {
    const long long row = blockIdx.x, each = (K + gridDim.y - 1) / gridDim.y;
    const long long end = min(K, (blockIdx.y + 1) * each);
    a += row * a_row;
    float sum = 0.0f;
    for (long long k = blockIdx.y * each + threadIdx.x; k < end; k += blockDim.x)
        sum += to_float(a[k * a_col]) * to_float(x[k * x_step]);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partials[blockIdx.y * M + row] = sum;
}

// A thread to a row.
extern "C" __global__ void gemv_finish(const float* partials, ELEMENT* y, long long M, int splits) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += partials[split * M + row];
    y[row] = from_float<ELEMENT>(sum);
}
