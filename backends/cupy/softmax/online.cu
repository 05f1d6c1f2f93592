#include "rows.cuh"

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
