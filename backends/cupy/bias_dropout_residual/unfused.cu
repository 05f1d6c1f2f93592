// unfused: the three steps, an element to a thread; what lies between them is float32.
#include "dropout.cuh"

// h = x + bias; `bias` may be null.
extern "C" __global__ void bdr_bias(
    const ELEMENT* x, const ELEMENT* bias, float* h, long long size, long long cols, long long x_row, long long x_col,
    long long bias_step) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= size) return;
    const long long row = e / cols, col = e % cols;
    h[e] = to_float(x[row * x_row + col * x_col]) + (bias ? to_float(bias[col * bias_step]) : 0.0f);
}

extern "C" __global__ void bdr_dropout(
    const float* h, float* dropped, long long size, long long threshold, float scale, unsigned long long seed,
    unsigned long long offset) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e < size) dropped[e] = dropped_out(h[e], philox(e >> 2, seed, offset).word[e & 3], threshold, scale);
}

extern "C" __global__ void bdr_residual(
    const float* dropped, const ELEMENT* residual, ELEMENT* y, long long size, long long cols, long long r_row,
    long long r_col) {
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= size) return;
    y[e] = from_float<ELEMENT>(dropped[e] + to_float(residual[e / cols * r_row + e % cols * r_col]));
}
