// What the variants share that load and store a vector of columns at once, and those that hold a row in registers.
#pragma once
#include "norms.cuh"
#include "online.cuh"

// The columns from `col` on: one of any stride, or 16 bytes of neighbours; `other` beyond the row. A vector of 16 bytes
// wants stride 1, a row that begins at a multiple of 16 bytes, and columns that are a multiple of its length.
template <int length>
__device__ inline void load_or(
    float other, const ELEMENT* row, long long stride, long long col, long long cols, float (&values)[length]) {
    static_assert(length == 1 || length == lanes_of<ELEMENT>, "a vector is 16 bytes or one element");
#pragma unroll
    for (int i = 0; i < length; ++i) values[i] = other;
    if (col >= cols) return;
    if constexpr (length == 1) {
        values[0] = to_float(row[col * stride]);
    } else {
        load16(row + col, values);
    }
}

template <int length> __device__ inline void store(ELEMENT* target, const float (&values)[length]) {
    if constexpr (length == 1) {
        *target = from_float<ELEMENT>(values[0]);
    } else {
        // nvcc splits some plain 16-byte stores into four.
        __stcg(reinterpret_cast<uint4*>(target), pack<ELEMENT>(values));
    }
}

__device__ inline __half2 larger(__half2 a, __half2 b) { return __hmax2(a, b); }
__device__ inline __nv_bfloat162 larger(__nv_bfloat162 a, __nv_bfloat162 b) { return __hmax2(a, b); }
__device__ inline float2 larger(float2 a, float2 b) { return {fmaxf(a.x, b.x), fmaxf(a.y, b.y)}; }

// The largest element of some vectors, two elements of 16 bits at a time; a NaN among others is dropped.
template <typename Element, int length, int vectors>
__device__ inline float largest(const Vector<Element, length> (&values)[vectors]) {
    if constexpr (length == 1) {
        float most = values[0][0];
#pragma unroll
        for (int r = 1; r < vectors; ++r) most = fmaxf(most, values[r][0]);
        return most;
    } else {
        typename Two<Element>::type pairs[vectors * length / 2];
#pragma unroll
        for (int r = 0; r < vectors; ++r) memcpy(pairs + r * length / 2, &values[r].raw, 16);
#pragma unroll
        for (int i = 1; i < vectors * length / 2; ++i) pairs[0] = larger(pairs[0], pairs[i]);
        return fmaxf(to_float(pairs[0].x), to_float(pairs[0].y));
    }
}

// Over a warp; a NaN among others is dropped.
__device__ inline float warp_largest(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, step));
    return value;
}

__device__ inline float exponential(float value, float base) {
    constexpr float log2e = 1.4426950408889634f;
    return exp2f((value - base) * log2e);
}

// From the largest value m of each warp and its sum l of exponentials against shift(m), the same on all lanes: those of
// the blockDim.x threads of a row, on all of them. Called once in a kernel; one barrier does, since the sums wait for
// no maximum of the other warps. Rows of one warp share a block along y; they meet no barrier, so that some may be
// absent.
__device__ inline Running row_merge(Running own) {
    __shared__ Running warps[32];
    if (blockDim.x == 32) return own;
    const int lane = threadIdx.x % 32;
    if (lane == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    Running other;
    if (lane < blockDim.x / 32) other = warps[lane];
    own.m = warp_largest(other.m);
    // Not shift(other.m): where that is 0 for want of a value, far below it the factor would be infinite.
    own.l = warp_sum(other.l * exponential(other.m, shift(own.m)));
    return own;
}

// Over the blockDim.x threads of a row.
__device__ inline float row_sum(float value) { return blockDim.x == 32 ? warp_sum(value) : block_sum(value); }
