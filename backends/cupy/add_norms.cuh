// h = x + residual for the rungs that hold a row of h in registers.
#pragma once
#include "norms.cuh"

// The sum rounded once, as it is stored; y comes from it.
template <int length>
__device__ inline Run<ELEMENT, length> add(const Run<ELEMENT, length>& x, const Run<ELEMENT, length>& residual) {
    float sums[length];
#pragma unroll
    for (int i = 0; i < length; ++i) sums[i] = x[i] + residual[i];
    if constexpr (length == 1) {
        return {from_float<ELEMENT>(sums[0])};
    } else {
        return {pack<ELEMENT>(sums)};
    }
}

template <int length> __device__ inline void store_packed(ELEMENT* target, const Run<ELEMENT, length>& run) {
    *reinterpret_cast<decltype(run.raw)*>(target) = run.raw;
}
