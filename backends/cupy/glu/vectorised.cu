#include "activations.cuh"
#include "pointwise.cuh"

// A vector to a thread. Lines of `cols` columns are rows, or all rows one behind the other.
extern "C" __global__ void glu_vectorised(
    const ELEMENT* __restrict__ gate, const ELEMENT* __restrict__ up, ELEMENT* __restrict__ y, long long gate_row,
    long long gate_col, long long up_row, long long up_col, long long rows, long long cols, int wide, int activation) {
    const Place at = place_of_vector(rows, cols);
    if (at.row >= rows) return;
    const uint4 packed_gate = load_line(gate + at.row * gate_row, gate_col, at.col, cols, wide);
    const uint4 packed_up = load_line(up + at.row * up_row, up_col, at.col, cols, wide);
    float values[lanes_of<ELEMENT>], factors[lanes_of<ELEMENT>];
    unpack<ELEMENT>(packed_gate, values);
    unpack<ELEMENT>(packed_up, factors);
    for_activation(activation, [&](auto chosen) {
#pragma unroll
        for (int i = 0; i < lanes_of<ELEMENT>; ++i) values[i] = activate_inline(values[i], chosen.number) * factors[i];
    });
    store_line(y + at.row * cols, at.col, cols, wide, values);
}
