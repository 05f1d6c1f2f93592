#include "norms.cuh"

// One block per row, in two passes over memory. There may be more rows than a grid has blocks.
extern "C" __global__ void rms_norm_block(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long x_col, long long w_col,
    long long rows, long long cols, float eps) {
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* line = x + row * x_row;

        float square = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float value = to_float(line[col * x_col]);
            square += value * value;
        }
        const float rstd = rsqrtf(row_sum(square, turn) / cols + eps);

        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float normed = to_float(line[col * x_col]) * rstd;
            y[row * cols + col] = from_float<ELEMENT>(normed * to_float(weight[col * w_col]));
        }
    }
}

// One warp per row, every lane with every 32nd column in its registers.
extern "C" __global__ void rms_norm_warp(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long x_col, long long w_col,
    long long rows, int cols, float eps) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    x += row * x_row;
    y += row * cols;

    float values[held];
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        values[i] = col < cols ? to_float(x[col * x_col]) : 0.0f;
        square += values[i] * values[i];
    }
    const float rstd = rsqrtf(warp_sum(square) / cols + eps);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) y[col] = from_float<ELEMENT>(values[i] * rstd * to_float(weight[col * w_col]));
    }
}
