#include "common.cuh"

extern "C" __global__ void softmax_naive(const ELEMENT* x, ELEMENT* y, long long rows, long long cols,
                                         long long x_row, long long x_col) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    // fmaxf drops a NaN and exp does not: a NaN, a +inf (inf - inf) and a row of -inf all reach the sum as NaN.
    float m = -INFINITY;
    for (long long col = 0; col < cols; ++col) m = fmaxf(m, to_float(x[col * x_col]));
    float l = 0.0f;
    for (long long col = 0; col < cols; ++col) l += expf(to_float(x[col * x_col]) - m);
    for (long long col = 0; col < cols; ++col) y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}

// A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
extern "C" __global__ void softmax_warp(const ELEMENT* x, ELEMENT* y, long long rows, int cols, long long x_row,
                                        long long x_col) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    float values[held];
    float m = -INFINITY;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        values[i] = col < cols ? to_float(x[col * x_col]) : -INFINITY;
        m = fmaxf(m, values[i]);
    }
    m = warp_max(m);

    float l = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        values[i] = expf(values[i] - m);
        l += values[i];
    }
    l = warp_sum(l);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) y[col] = from_float<ELEMENT>(values[i] / l);
    }
}

extern "C" __global__ void softmax_block(const ELEMENT* x, ELEMENT* y, long long cols, long long x_row,
                                         long long x_col) {
    x += blockIdx.x * x_row;
    y += blockIdx.x * cols;

    float m = -INFINITY;
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) m = fmaxf(m, to_float(x[col * x_col]));
    m = block_max(m);

    float l = 0.0f;
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) l += expf(to_float(x[col * x_col]) - m);
    l = block_sum(l);

    for (long long col = threadIdx.x; col < cols; col += blockDim.x)
        y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}
