// What `staged` and `cluster` share.
#pragma once
#include "rows.cuh"
#include "shares.cuh"

// -inf for what of a vector is not of the row.
__device__ inline void end_row(Values& values, int col, int cols) {
    if (whole<!ALIGNED || SHIFTED, lanes>(col, cols)) return;
    ELEMENT elements[lanes];
    memcpy(elements, &values.raw, 16);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
        if (!inside(col + i, cols)) elements[i] = from_float<ELEMENT>(-INFINITY);
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
