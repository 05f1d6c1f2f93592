#include "common.cuh"

extern "C" __global__ void layer_norm_naive(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col,
    long long w_col, long long b_col, long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    float sum = 0.0f;
    for (long long col = 0; col < cols; ++col) sum += to_float(x[col * x_col]);
    const float mean = sum / cols;
    float square = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        const float centred = to_float(x[col * x_col]) - mean;
        square += centred * centred;
    }
    const float rstd = rsqrtf(square / cols + eps);
    for (long long col = 0; col < cols; ++col) {
        const float normed = (to_float(x[col * x_col]) - mean) * rstd;
        const float shift = bias ? to_float(bias[col * b_col]) : 0.0f;
        y[col] = from_float<ELEMENT>(normed * to_float(weight[col * w_col]) + shift);
    }
}
