#include "online.cuh"
#include "rows.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in runs of RUN that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024) online_softmax_vectorised(
    const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, float* __restrict__ lse, long long rows, int cols,
    long long x_row, long long x_col) {
    constexpr int runs = COLUMNS / RUN;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    x += row * x_row;
    y += row * cols;

    float values[runs][RUN];
#pragma unroll
    for (int r = 0; r < runs; ++r) {
        load_or(-INFINITY, x, x_col, (r * blockDim.x + threadIdx.x) * RUN, cols, values[r]);
    }

    Running running;
#pragma unroll
    for (int r = 0; r < runs; ++r) fold(running, values[r]);
    running = blockDim.x == 32 ? warp_merge(running) : block_merge(running);
    if (threadIdx.x == 0) lse[row] = log_sum(running);

    const float m = shift(running.m), inverse = 1.0f / denominator(running);
#pragma unroll
    for (int r = 0; r < runs; ++r) {
        const int col = (r * blockDim.x + threadIdx.x) * RUN;
#pragma unroll
        for (int i = 0; i < RUN; ++i) values[r][i] = expf(values[r][i] - m) * inverse;
        if (col < cols) store(y + col, values[r]);
    }
}
