#include "rows.cuh"

// A row in the registers of blockDim.x threads, COLUMNS in each, in vectors of VECTOR that one access loads or stores.
// Rows of one warp share a block, blockDim.y of them. The row stays as it was loaded and every exponential is computed
// twice: kept as floats, elements of 16 bits would take twice the registers, and fewer rows would be on their way.
extern "C" __global__ void __launch_bounds__(1024, blocks_at_once<ELEMENT>(COLUMNS, VECTOR, SHIFTED))
softmax_vectorised(
    const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, long long rows, int cols, long long x_row,
    long long x_col) {
    constexpr int vectors = COLUMNS / VECTOR;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    x += row * x_row;
    y += row * cols;
    const int lead = lead_of<SHIFTED, VECTOR>(row, cols);

    Vector<ELEMENT, VECTOR> values[vectors];
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        values[r] = load_row<SHIFTED, VECTOR>(x, x_col, column<VECTOR>(r, lead), cols, -INFINITY);
    }

    // Each warp against the largest of its own; a NaN that the maximum has dropped reaches the sum.
    Running running;
    running.m = warp_largest(largest(values));
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) running.l += exponential(values[r][i], shift(running.m));
    }
    running.l = warp_sum(running.l);
    keep_packed(values);
    running = row_merge(running);

    const float m = shift(running.m), inverse = 1.0f / denominator(running);
#pragma unroll
    for (int r = 0; r < vectors; ++r) {
        float out[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) out[i] = exponential(values[r][i], m) * inverse;
        store_row<SHIFTED>(y, column<VECTOR>(r, lead), cols, rounded<ELEMENT>(out));
    }
}
