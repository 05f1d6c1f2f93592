#include "activations.cuh"

extern "C" __global__ void glu_naive(
    const ELEMENT* gate, const ELEMENT* up, ELEMENT* y, long long gate_row, long long gate_col, long long up_row,
    long long up_col, long long rows, long long cols, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * cols) return;
    const long long row = i / cols, col = i % cols;
    const float opened = activate(to_float(gate[row * gate_row + col * gate_col]), activation);
    y[i] = from_float<ELEMENT>(opened * to_float(up[row * up_row + col * up_col]));
}
