#include "common.cuh"

extern "C" __global__ void softmax_backward_naive(
    const ELEMENT* y, const ELEMENT* dy, ELEMENT* dx, long long rows, long long cols, long long y_row,
    long long y_col, long long dy_row, long long dy_col) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    y += row * y_row;
    dy += row * dy_row;
    dx += row * cols;

    float delta = 0.0f;
    for (long long col = 0; col < cols; ++col) delta += to_float(y[col * y_col]) * to_float(dy[col * dy_col]);
    for (long long col = 0; col < cols; ++col) {
        dx[col] = from_float<ELEMENT>(to_float(y[col * y_col]) * (to_float(dy[col * dy_col]) - delta));
    }
}
