#include "rows.cuh"
#include "staying_rows.cuh"

// -inf for what a vector has beyond the row's end.
__device__ inline void end_row(Values& values, int col, int cols) {
    if (ALIGNED ? col < cols : col + lanes <= cols) return;
    ELEMENT elements[lanes];
    memcpy(elements, &values.raw, 16);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
        if (col + i >= cols) elements[i] = from_float<ELEMENT>(-INFINITY);
    }
    memcpy(&values.raw, elements, 16);
}

// From the largest value m of each warp and its sum l of exponentials against shift(m): those of the row.
__device__ inline Running merged(Running warp, int& turn) {
    const Shares<2> warps = share({warp.m, warp.l}, -INFINITY, turn);
    Running running;
#pragma unroll
    for (int k = 0; k < CLUSTER; ++k) running.m = fmaxf(running.m, warps.of[0][k]);
    running.m = warp_largest(running.m);
#pragma unroll
    for (int k = 0; k < CLUSTER; ++k) {
        // A warp that is not there has a sum of -inf.
        const float l = warps.of[1][k] == -INFINITY ? 0.0f : warps.of[1][k];
        running.l += l * exponential(warps.of[0][k], shift(running.m));
    }
    running.l = warp_sum(running.l);
    return running;
}

extern "C" __global__ void IN_CLUSTERS __launch_bounds__(1024) softmax_staged(
    const ELEMENT* x, ELEMENT* y, long long x_row, long long x_col, long long rows, int cols) {
    extern __shared__ uint4 shared[];
    StayingRows staying(x, x_row, x_col, rows, cols, shared);
    const int own = staying.own;
    y += staying.begin;
    int turn = 0;
    Values values[VECTORS];
    while (staying.next(values)) {
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) end_row(values[r], column(r), own);

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
            store_values(y + staying.row * cols, column(r), own, out);
        }
    }
}
