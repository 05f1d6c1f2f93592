#include "common.cuh"

// dx by one thread per row; rstd of every row goes to `statistics` (rows,).
extern "C" __global__ void rms_norm_backward_naive(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx,
    float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col,
    long long rstd_row, long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    dy += row * dy_row;
    dx += row * cols;

    float square = 0.0f, dot = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        const float value = to_float(x[col * x_col]);
        square += value * value;
        dot += to_float(dy[col * dy_col]) * to_float(weight[col * w_col]) * value;
    }
    const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(square / cols + eps);
    dot *= rstd / cols;
    for (long long col = 0; col < cols; ++col) {
        const float g = to_float(dy[col * dy_col]) * to_float(weight[col * w_col]);
        dx[col] = from_float<ELEMENT>(rstd * (g - to_float(x[col * x_col]) * rstd * dot));
    }
    statistics[row] = rstd;
}
