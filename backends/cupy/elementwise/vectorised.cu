#include "elementwise.cuh"
#include "pointwise.cuh"

// A vector to a thread. Lines of `cols` columns are rows, or all rows one behind the other.
extern "C" __global__ void elementwise_vectorised(
    const ELEMENT* __restrict__ a, const ELEMENT* __restrict__ b, ELEMENT* __restrict__ y, long long a_row,
    long long a_col, long long b_row, long long b_col, long long y_row, long long rows, long long cols,
    int wide, int function) {
    const Place at = place_of_vector(rows, cols);
    if (at.row >= rows) return;
    const uint4 packed_a = load_line(a + at.row * a_row, a_col, at.col, cols, wide);
    const uint4 packed_b = load_line(b + at.row * b_row, b_col, at.col, cols, wide);
    float left[lanes_of<ELEMENT>], right[lanes_of<ELEMENT>];
    unpack<ELEMENT>(packed_a, left);
    unpack<ELEMENT>(packed_b, right);
#pragma unroll
    for (int i = 0; i < lanes_of<ELEMENT>; ++i) left[i] = combine(left[i], right[i], function);
    store_line(y + at.row * y_row, at.col, cols, wide, left);
}
