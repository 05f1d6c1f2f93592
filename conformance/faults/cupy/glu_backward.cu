#include "activations.cuh"

enum Fault {
    none,
    dup_from_dgate,
    dgate_overwrites_up,
};

// An element to a thread of a grid that steps.
extern "C" __global__ void glu_backward_stepping(
    const ELEMENT* gate, ELEMENT* up, const ELEMENT* dy, ELEMENT* dgate, ELEMENT* dup, long long gate_row,
    long long gate_col, long long up_row, long long up_col, long long dy_row, long long dy_col, long long rows,
    long long cols, int activation, int fault) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += step) {
        const long long row = i / cols, col = i % cols;
        float g = to_float(gate[row * gate_row + col * gate_col]);
        const float upstream = to_float(dy[row * dy_row + col * dy_col]);
        const float found = upstream * to_float(up[row * up_row + col * up_col]) * slope(g, activation);
        dgate[i] = from_float<ELEMENT>(found);
        if (fault == dgate_overwrites_up) up[row * up_row + col * up_col] = dgate[i];
        if (fault == dup_from_dgate) g = found;
        dup[i] = from_float<ELEMENT>(upstream * activate(g, activation));
    }
}
