#include "common.cuh"

extern "C" __global__ void rms_norm_naive(
    const ELEMENT* x, const ELEMENT* weight, ELEMENT* y, long long x_row, long long x_col, long long w_col,
    long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    y += row * cols;

    float square = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        const float value = to_float(x[col * x_col]);
        square += value * value;
    }
    const float rstd = rsqrtf(square / cols + eps);
    for (long long col = 0; col < cols; ++col) {
        y[col] = from_float<ELEMENT>(to_float(x[col * x_col]) * rstd * to_float(weight[col * w_col]));
    }
}
