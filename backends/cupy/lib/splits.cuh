// Merging the parts of attention whose keys several warps share.
#pragma once
#include "online.cuh"

// A warp for each row, whose lanes hold up to `held` columns each; a part without keys has an lse of -inf, and its o
// is not looked at.
template <int held, typename Element>
__device__ inline void merge_parts(
    const float* parts, const float* part_lse, Element* o, float* lse, int splits, int dim) {
    const long long row = blockIdx.x;
    float merged[held] = {};
    Running running;
    part_lse += row * splits;
    for (int split = threadIdx.x; split < splits; split += 32) running.m = maximum(running.m, part_lse[split]);
    running.m = warp_max(running.m);
#pragma unroll 4  // the maximum is known: parts are read without waiting for those before
    for (int split = 0; split < splits; ++split) {
        const float p = expf(part_lse[split] - shift(running.m));
        running.l += p;
#pragma unroll
        for (int n = 0; n < held; ++n) {
            const int d = n * 32 + threadIdx.x;
            if (d < dim && p != 0.0f) merged[n] += p * parts[(row * splits + split) * dim + d];
        }
    }
    const float inverse = running.l == 0.0f ? 0.0f : 1.0f / running.l;
#pragma unroll
    for (int n = 0; n < held; ++n) {
        const int d = n * 32 + threadIdx.x;
        if (d < dim) o[row * dim + d] = from_float<Element>(merged[n] * inverse);
    }
    if (threadIdx.x == 0) lse[row] = log_sum(running);
}
