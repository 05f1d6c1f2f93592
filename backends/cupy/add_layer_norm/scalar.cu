#include "common.cuh"

// A block is 32 lanes by some rows; lane i holds the columns i, i + 32, ...
extern "C" __global__ void add_layer_norm_warp(const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight,
                                               const ELEMENT* bias, ELEMENT* y, ELEMENT* h, long long x_row,
                                               long long x_col, long long r_row, long long r_col, long long w_col,
                                               long long b_col, long long rows, int cols, float eps) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * x_row;
    residual += row * r_row;
    y += row * cols;
    h += row * cols;

    float values[held];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        values[i] = col < cols ? to_float(x[col * x_col]) + to_float(residual[col * r_col]) : 0.0f;
        sum += values[i];
    }
    const float mean = warp_sum(sum) / cols;

    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const float centred = i * 32 + threadIdx.x < cols ? values[i] - mean : 0.0f;
        square += centred * centred;
    }
    const float rstd = rsqrtf(warp_sum(square) / cols + eps);

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) {
            h[col] = from_float<ELEMENT>(values[i]);
            const float shift = bias ? to_float(bias[col * b_col]) : 0.0f;
            y[col] = from_float<ELEMENT>((values[i] - mean) * rstd * to_float(weight[col * w_col]) + shift);
        }
    }
}

// h is written once and read back, rounded, by the thread that wrote it: no barrier is needed for that. There may be
// more rows than a grid has blocks.
extern "C" __global__ void add_layer_norm_block(const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight,
                                                const ELEMENT* bias, ELEMENT* y, ELEMENT* h, long long x_row,
                                                long long x_col, long long r_row, long long r_col, long long w_col,
                                                long long b_col, long long rows, long long cols, float eps) {
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* left = x + row * x_row;
        const ELEMENT* right = residual + row * r_row;
        ELEMENT* both = h + row * cols;

        float sum = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            both[col] = from_float<ELEMENT>(to_float(left[col * x_col]) + to_float(right[col * r_col]));
            sum += to_float(both[col]);
        }
        const float mean = block_sum(sum) / cols;

        float square = 0.0f;
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float centred = to_float(both[col]) - mean;
            square += centred * centred;
        }
        const float rstd = rsqrtf(block_sum(square) / cols + eps);

        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float shift = bias ? to_float(bias[col * b_col]) : 0.0f;
            const float normed = (to_float(both[col]) - mean) * rstd;
            y[row * cols + col] = from_float<ELEMENT>(normed * to_float(weight[col * w_col]) + shift);
        }
    }
}
