#include "activations.cuh"

extern "C" __global__ void glu_backward_naive(
    const ELEMENT* gate, const ELEMENT* up, const ELEMENT* dy, ELEMENT* dgate, ELEMENT* dup, long long gate_row,
    long long gate_col, long long up_row, long long up_col, long long dy_row, long long dy_col, long long rows,
    long long cols, int activation) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * cols) return;
    const long long row = i / cols, col = i % cols;
    const float g = to_float(gate[row * gate_row + col * gate_col]);
    const float upstream = to_float(dy[row * dy_row + col * dy_col]);
    dgate[i] = from_float<ELEMENT>(upstream * to_float(up[row * up_row + col * up_col]) * slope(g, activation));
    dup[i] = from_float<ELEMENT>(upstream * activate(g, activation));
}
