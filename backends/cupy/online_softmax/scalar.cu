#include "online.cuh"

extern "C" __global__ void online_softmax_online(const ELEMENT* x, ELEMENT* y, float* lse, long long rows,
                                                 long long cols, long long x_row, long long x_col) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    Running running;
    for (long long col = 0; col < cols; ++col) {
        const float values[1] = {to_float(x[col * x_col])};
        fold(running, values);
    }
    lse[row] = log_sum(running);

    const float m = shift(running.m), l = denominator(running);
    for (long long col = 0; col < cols; ++col) y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}

// A block is 32 lanes by some rows.
extern "C" __global__ void online_softmax_warp(const ELEMENT* x, ELEMENT* y, float* lse, long long rows,
                                               long long cols, long long x_row, long long x_col) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    Running running;
    for (long long col = threadIdx.x; col < cols; col += 32) {
        const float values[1] = {to_float(x[col * x_col])};
        fold(running, values);
    }
    running = warp_merge(running);
    if (threadIdx.x == 0) lse[row] = log_sum(running);

    const float m = shift(running.m), l = denominator(running);
    for (long long col = threadIdx.x; col < cols; col += 32)
        y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}

extern "C" __global__ void online_softmax_block(const ELEMENT* x, ELEMENT* y, float* lse, long long cols,
                                                long long x_row, long long x_col) {
    x += blockIdx.x * x_row;
    y += blockIdx.x * cols;

    Running running;
    for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
        const float values[1] = {to_float(x[col * x_col])};
        fold(running, values);
    }
    running = block_merge(running);
    if (threadIdx.x == 0) lse[blockIdx.x] = log_sum(running);

    const float m = shift(running.m), l = denominator(running);
    for (long long col = threadIdx.x; col < cols; col += blockDim.x)
        y[col] = from_float<ELEMENT>(expf(to_float(x[col * x_col]) - m) / l);
}
