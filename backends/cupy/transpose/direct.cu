// naive, coalesced: a thread for each element.
#include "common.cuh"

extern "C" __global__ void transpose_naive(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= rows * cols) return;
    const long long row = index / cols, col = index % cols;  // neighbours in a warp are neighbours in x
    y[col * rows + row] = x[row * x_row + col * x_col];
}

extern "C" __global__ void transpose_coalesced(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    const long long across = (cols + blockDim.y - 1) / blockDim.y;
    const long long row = blockIdx.x / across * blockDim.x + threadIdx.x;  // neighbours in a warp are neighbours in y
    const long long col = blockIdx.x % across * blockDim.y + threadIdx.y;
    if (row < rows && col < cols) y[col * rows + row] = x[row * x_row + col * x_col];
}
