// h = x + residual for the variants that hold a row of h in registers.
#pragma once
#include "norms.cuh"

__device__ inline __half2 sum(__half2 a, __half2 b) { return __hadd2(a, b); }
__device__ inline __nv_bfloat162 sum(__nv_bfloat162 a, __nv_bfloat162 b) { return __hadd2(a, b); }
__device__ inline float2 sum(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

// The sum rounded once, as it is stored; y comes from it. Pairs of 16 bits are added in place: unpacked, both operands
// would take twice the registers. A float32 in between would give the same bits, as it has more than twice theirs.
template <int length>
__device__ inline Vector<ELEMENT, length> add(
    const Vector<ELEMENT, length>& x, const Vector<ELEMENT, length>& residual) {
    if constexpr (length == 1) {
        return {from_float<ELEMENT>(x[0] + residual[0])};
    } else {
        using Pair = typename Two<ELEMENT>::type;
        constexpr int pairs = length / 2;
        Pair left[pairs], right[pairs];
        memcpy(left, &x.raw, 16);
        memcpy(right, &residual.raw, 16);
#pragma unroll
        for (int i = 0; i < pairs; ++i) left[i] = sum(left[i], right[i]);
        Vector<ELEMENT, length> h;
        memcpy(&h.raw, left, 16);
        return h;
    }
}
