#include "common.cuh"

// A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
extern "C" __global__ void softmax_backward_warp(const ELEMENT* y, const ELEMENT* dy, ELEMENT* dx, long long rows,
                                                 int cols, long long y_row, long long y_col, long long dy_row,
                                                 long long dy_col) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    y += row * y_row;
    dy += row * dy_row;
    dx += row * cols;

    float weight[held], gradient[held];
    float delta = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        weight[i] = col < cols ? to_float(y[col * y_col]) : 0.0f;
        gradient[i] = col < cols ? to_float(dy[col * dy_col]) : 0.0f;
        delta += weight[i] * gradient[i];
    }
    delta = warp_sum(delta);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) dx[col] = from_float<ELEMENT>(weight[i] * (gradient[i] - delta));
    }
}

// There may be more rows than a grid has blocks.
extern "C" __global__ void softmax_backward_block(const ELEMENT* y, const ELEMENT* dy, ELEMENT* dx, long long rows,
                                                  long long cols, long long y_row, long long y_col,
                                                  long long dy_row, long long dy_col) {
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* weight = y + row * y_row;
        const ELEMENT* gradient = dy + row * dy_row;

        float delta = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x)
            delta += to_float(weight[col * y_col]) * to_float(gradient[col * dy_col]);
        delta = block_sum(delta);

        for (long long col = threadIdx.x; col < cols; col += blockDim.x)
            dx[row * cols + col] =
                from_float<ELEMENT>(to_float(weight[col * y_col]) * (to_float(gradient[col * dy_col]) - delta));
    }
}
