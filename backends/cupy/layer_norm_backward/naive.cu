#include "common.cuh"

// dx by one thread per row; mean and rstd of every row go to `statistics` (2, rows).
extern "C" __global__ void layer_norm_backward_naive(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long mean_row, long long rstd_row, long long rows, long long cols, float eps) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    x += row * x_row;
    dy += row * dy_row;
    dx += row * cols;

    float sum = 0.0f;
    for (long long col = 0; col < cols && !given_mean; ++col) sum += to_float(x[col * x_col]);
    const float mean = given_mean ? given_mean[row * mean_row] : sum / cols;
    float square = 0.0f, shift = 0.0f, dot = 0.0f;
    for (long long col = 0; col < cols; ++col) {
        const float centred = to_float(x[col * x_col]) - mean;
        const float g = to_float(dy[col * dy_col]) * to_float(weight[col * w_col]);
        square += centred * centred;
        shift += g;
        dot += g * centred;
    }
    const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(square / cols + eps);
    shift /= cols;
    dot *= rstd / cols;
    for (long long col = 0; col < cols; ++col) {
        const float normed = (to_float(x[col * x_col]) - mean) * rstd;
        const float g = to_float(dy[col * dy_col]) * to_float(weight[col * w_col]);
        dx[col] = from_float<ELEMENT>(rstd * (g - shift - normed * dot));
    }
    statistics[row] = mean;
    statistics[rows + row] = rstd;
}
