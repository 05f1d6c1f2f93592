#include "activations.cuh"

struct Operands {
    const ELEMENT *x, *bias, *dy;
    long long x_row, x_col, b_col, dy_row, dy_col;

    __device__ inline float gradient(long long row, long long col, int activation) const {
        float z = to_float(x[row * x_row + col * x_col]);
        if (bias) z += to_float(bias[col * b_col]);
        return to_float(dy[row * dy_row + col * dy_col]) * slope(z, activation);
    }
};

extern "C" __global__ void activation_backward_naive(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* dy, long long x_row, long long x_col, long long b_col,
    long long dy_row, long long dy_col, ELEMENT* dx, long long rows, long long cols, int activation) {
    const Operands at = {x, bias, dy, x_row, x_col, b_col, dy_row, dy_col};
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) dx[i] = from_float<ELEMENT>(at.gradient(i / cols, i % cols, activation));
}

extern "C" __global__ void activation_backward_columns(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* dy, long long x_row, long long x_col, long long b_col,
    long long dy_row, long long dy_col, ELEMENT* dbias, long long rows, long long cols, int activation) {
    const Operands at = {x, bias, dy, x_row, x_col, b_col, dy_row, dy_col};
    const long long col = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (long long row = 0; row < rows; ++row) sum += at.gradient(row, col, activation);
    dbias[col] = from_float<ELEMENT>(sum);
}
