// What the rungs share that load and store a run of columns at once, and those that hold a row in registers.
#pragma once
#include "common.cuh"

// The columns from `col` on: one of any stride, or 16 bytes of neighbours; `other` beyond the row. A run of 16 bytes
// wants stride 1, a row that begins at a multiple of 16 bytes, and columns that are a multiple of its length.
template <int length>
__device__ inline void load_or(
    float other, const ELEMENT* row, long long stride, long long col, long long cols, float (&values)[length]) {
    static_assert(length == 1 || length == lanes_of<ELEMENT>, "a run is 16 bytes or one element");
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

// Over the blockDim.x threads of a row. Rows of one warp share a block along y; they meet no barrier, so that some may
// be absent.
__device__ inline float row_max(float value) { return blockDim.x == 32 ? warp_max(value) : block_max(value); }

__device__ inline float row_sum(float value) { return blockDim.x == 32 ? warp_sum(value) : block_sum(value); }
