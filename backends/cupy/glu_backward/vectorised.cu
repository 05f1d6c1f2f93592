#include "activations.cuh"
#include "pointwise.cuh"

// A vector to a thread. Lines of `cols` columns are rows, or all rows one behind the other.
extern "C" __global__ void glu_backward_vectorised(
    const ELEMENT* __restrict__ gate, const ELEMENT* __restrict__ up, const ELEMENT* __restrict__ dy,
    ELEMENT* __restrict__ dgate, ELEMENT* __restrict__ dup, long long gate_row, long long gate_col, long long up_row,
    long long up_col, long long dy_row, long long dy_col, long long rows, long long cols, int wide, int activation) {
    const Place at = place_of_vector(rows, cols);
    if (at.row >= rows) return;
    const uint4 packed_gate = load_line(gate + at.row * gate_row, gate_col, at.col, cols, wide);
    const uint4 packed_up = load_line(up + at.row * up_row, up_col, at.col, cols, wide);
    const uint4 packed_dy = load_line(dy + at.row * dy_row, dy_col, at.col, cols, wide);
    float g[lanes_of<ELEMENT>], u[lanes_of<ELEMENT>], upstream[lanes_of<ELEMENT>];
    unpack<ELEMENT>(packed_gate, g);
    unpack<ELEMENT>(packed_up, u);
    unpack<ELEMENT>(packed_dy, upstream);
    for_activation(activation, [&](auto chosen) {
#pragma unroll
        for (int i = 0; i < lanes_of<ELEMENT>; ++i) {
            u[i] *= upstream[i] * slope_inline(g[i], chosen.number);
            g[i] = upstream[i] * activate_inline(g[i], chosen.number);
        }
    });
    store_line(dgate + at.row * cols, at.col, cols, wide, u);
    store_line(dup + at.row * cols, at.col, cols, wide, g);
}
