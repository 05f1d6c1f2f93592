#include "activations.cuh"

// An element to a thread; `bias` may be null.
__device__ inline void one_element(
    const ELEMENT* x, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col, long long b_col, long long row,
    long long col, long long cols, int activation) {
    float value = to_float(x[row * x_row + col * x_col]);
    if (bias) value += to_float(bias[col * b_col]);
    y[row * cols + col] = from_float<ELEMENT>(activate(value, activation));
}

extern "C" __global__ void activation_uncoalesced(
    const ELEMENT* x, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col, long long b_col,
    long long rows, long long cols, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) one_element(x, bias, y, x_row, x_col, b_col, i % rows, i / rows, cols, activation);
}

extern "C" __global__ void activation_naive(
    const ELEMENT* x, const ELEMENT* bias, ELEMENT* y, long long x_row, long long x_col, long long b_col,
    long long rows, long long cols, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) one_element(x, bias, y, x_row, x_col, b_col, i / cols, i % cols, cols, activation);
}
