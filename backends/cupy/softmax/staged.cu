#include "merged.cuh"
#include "staying_rows.cuh"

extern "C" __global__ void __launch_bounds__(1024) softmax_staged(
    const ELEMENT* x, ELEMENT* y, long long x_row, long long x_col, long long rows, int cols) {
    extern __shared__ uint4 shared[];
    StayingRows staying(x, x_row, x_col, rows, cols, shared);
    int turn = 0;
    Values values[VECTORS];
    while (staying.next(values)) {
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) end_row(values[r], column(r), cols);

        // Each warp against the largest of its own; a NaN that the maximum has dropped reaches the sum.
        Running running;
        running.m = warp_largest(largest(values));
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
#pragma unroll
            for (int i = 0; i < lanes; ++i) running.l += exponential(values[r][i], shift(running.m));
        }
        running.l = warp_sum(running.l);
        keep_packed(values);
        running = merged(running, turn);

        const float m = shift(running.m), inverse = 1.0f / denominator(running);
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            float out[lanes];
#pragma unroll
            for (int i = 0; i < lanes; ++i) out[i] = exponential(values[r][i], m) * inverse;
            store_values(y + staying.row * cols, column(r), cols, out);
        }
    }
}
