// Merging the parts of attention whose keys several warps share.
#pragma once
#include "online.cuh"

// A warp for each row, whose lanes hold up to `held` columns each; a part without keys has an lse of -inf and no weight.
template <int held, typename Element>
__device__ inline void merge_parts(
    const float* parts, const float* part_lse, Element* o, float* lse, int splits, int dim) {
    const long long row = blockIdx.x;
    float merged[held] = {};
    Running running;
    for (int split = 0; split < splits; ++split) {
        const float s[1] = {part_lse[row * splits + split]}, before = running.m;
        fold(running, s);
        const float kept = expf(before - shift(running.m)), p = expf(s[0] - shift(running.m));
#pragma unroll
        for (int n = 0; n < held; ++n) {
            const int d = n * 32 + threadIdx.x;
            if (d < dim) merged[n] = merged[n] * kept + p * parts[(row * splits + split) * dim + d];
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
