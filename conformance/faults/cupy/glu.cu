#include "activations.cuh"

enum Fault {
    none,
    act_of_up,
    row_of_up_ignored,
    last_lane_lost,
};

// A vector to a thread where rows begin at multiples of 16 bytes, `across` of them to a row; else an element at a time.
extern "C" __global__ void glu_rows(
    const ELEMENT* gate, const ELEMENT* up, ELEMENT* y, long long gate_row, long long gate_col, long long up_row,
    long long up_col, long long rows, long long cols, int aligned, int activation, int fault) {
    constexpr int length = lanes_of<ELEMENT>;
    if (fault == row_of_up_ignored) up_row = gate_row;
    const long long across = (cols + length - 1) / length;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long row = thread / across, col = thread % across * length;
    if (row >= rows) return;
    gate += row * gate_row;
    up += row * up_row;
    if (aligned && col + length <= cols) {
        float opened[length], factors[length];
        load16(gate + col, opened);
        load16(up + col, factors);
        for (int i = 0; i < length; ++i) {
            opened[i] = fault == act_of_up ? opened[i] * activate(factors[i], activation)
                                           : activate(opened[i], activation) * factors[i];
        }
        store16(y + row * cols + col, opened);
        return;
    }
    const int lanes = fault == last_lane_lost ? length - 1 : length;
    for (int i = 0; i < lanes && col + i < cols; ++i) {
        const float g = to_float(gate[(col + i) * gate_col]), u = to_float(up[(col + i) * up_col]);
        y[row * cols + col + i] = from_float<ELEMENT>(activate(g, activation) * u);
    }
}
