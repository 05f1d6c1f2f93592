#include "merged.cuh"
#include "shared_rows.cuh"

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BESIDE) softmax_cluster(
    const ELEMENT* x, ELEMENT* y, long long x_row, long long x_col, int cols) {
    extern __shared__ uint4 shared[];
    const SharedRow values(x, x_row, x_col, cols, shared);
    y += values.row * cols;
    int turn = 0;

    // Each warp against the largest of its own; a NaN that the maximum has dropped reaches the sum.
    Running running;
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        Values some[1] = {values[r]};
        end_row(some[0], values.column(r), cols);
        running.m = fmaxf(running.m, largest(some));
    }
    running.m = warp_largest(running.m);
    values.once_more();
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        Values some = values[r];
        end_row(some, values.column(r), cols);
#pragma unroll
        for (int i = 0; i < lanes; ++i) running.l += exponential(some[i], shift(running.m));
    }
    running.l = warp_sum(running.l);
    running = merged(running, turn);

    const float m = shift(running.m), inverse = 1.0f / denominator(running);
#pragma unroll 2
    for (int r = 0; r < VECTORS; ++r) {
        const Values some = values[r];
        float out[lanes];
#pragma unroll
        for (int i = 0; i < lanes; ++i) out[i] = exponential(some[i], m) * inverse;
        store_values(y, values.column(r), cols, out);
    }
}
