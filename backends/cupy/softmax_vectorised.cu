#include "rows.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in runs of RUN that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them.
extern "C" __global__ void __launch_bounds__(1024) softmax_vectorised(
    const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, long long rows, int cols, long long x_row,
    long long x_col) {
    constexpr int runs = COLUMNS / RUN;
    constexpr float log2e = 1.4426950408889634f;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    x += row * x_row;
    y += row * cols;

    float values[runs][RUN];
#pragma unroll
    for (int r = 0; r < runs; ++r) {
        load_or(-INFINITY, x, x_col, (r * blockDim.x + threadIdx.x) * RUN, cols, values[r]);
    }

    float m = -INFINITY;
#pragma unroll
    for (int r = 0; r < runs; ++r) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) m = fmaxf(m, values[r][i]);
    }
    m = row_max(m);

    float l = 0.0f;
#pragma unroll
    for (int r = 0; r < runs; ++r) {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            values[r][i] = exp2f((values[r][i] - m) * log2e);
            l += values[r][i];
        }
    }
    // 1 / l cannot overflow: the largest column adds 1.
    const float inverse = 1.0f / row_sum(l);

#pragma unroll
    for (int r = 0; r < runs; ++r) {
        const int col = (r * blockDim.x + threadIdx.x) * RUN;
#pragma unroll
        for (int i = 0; i < RUN; ++i) values[r][i] *= inverse;
        if (col < cols) store(y + col, values[r]);
    }
}
