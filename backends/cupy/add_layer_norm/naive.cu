#include "common.cuh"

extern "C" __global__ void add_layer_norm_naive(
    const ELEMENT* x, const ELEMENT* residual, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y, ELEMENT* h,
    long long x_row, long long x_col, long long r_row, long long r_col, long long w_col, long long b_col,
    long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    residual += row * r_row;
    y += row * cols;
    h += row * cols;

    float sum = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        h[col] = from_float<ELEMENT>(to_float(x[col * x_col]) + to_float(residual[col * r_col]));
        sum += to_float(h[col]);
    }
    const float mean = sum / cols;
    float square = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        const float centred = to_float(h[col]) - mean;
        square += centred * centred;
    }
    const float rstd = rsqrtf(square / cols + eps);
    for (long long col = 0; col < cols; ++col) {
        const float shift = bias ? to_float(bias[col * b_col]) : 0.0f;
        y[col] = from_float<ELEMENT>((to_float(h[col]) - mean) * rstd * to_float(weight[col * w_col]) + shift);
    }
}
