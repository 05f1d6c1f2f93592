#include "rows.cuh"

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

template <int length>
__device__ void online_row(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, long long cols, long long x_col) {
    constexpr int ahead = 4; // loads on their way before the first is used
    const long long step = blockDim.x * length;
    float values[ahead][length];

    Running running;
    for (long long start = threadIdx.x * length; start < cols; start += ahead * step) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) load_or(-INFINITY, x, x_col, start + i * step, cols, values[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) fold(running, values[i]);
    }
    running = block_merge(running);
    const float m = shift(running.m), inverse = 1.0f / denominator(running);

    for (long long start = threadIdx.x * length; start < cols; start += ahead * step) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) load_or(0.0f, x, x_col, start + i * step, cols, values[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
#pragma unroll
            for (int j = 0; j < length; ++j) values[i][j] = expf(values[i][j] - m) * inverse;
            if (start + i * step < cols) store(y + start + i * step, values[i]);
        }
    }
}

extern "C" __global__ void softmax_online(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, long long cols,
                                          long long x_row, long long x_col, int wide) {
    x += blockIdx.x * x_row;
    y += blockIdx.x * cols;
    if (wide)
        online_row<lanes_of<ELEMENT>>(x, y, cols, x_col);
    else
        online_row<1>(x, y, cols, x_col);
}
