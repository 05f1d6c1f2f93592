// What the norms share: sums over the threads of a row, and runs of elements that one access loads or stores.
#pragma once
#include "common.cuh"

// Sums over the blockDim.x threads of a row; every thread gets the same bits. A row of one warp needs no barrier, and
// such rows may share a block. `turn` counts the calls: two halves of `partials` take turns, so that a slow reader of
// one call is not overtaken by the next call's writers and one barrier is enough.
template <int count> __device__ inline void row_sums(float (&values)[count], int& turn) {
    __shared__ float partials[2][count][32];
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
    if (blockDim.x == 32) return;

    const int half = turn++ % 2, lane = threadIdx.x % 32;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) partials[half][i][threadIdx.x / 32] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(lane < blockDim.x / 32 ? partials[half][i][lane] : 0.0f);
}

__device__ inline float row_sum(float value, int& turn) {
    float values[1] = {value};
    row_sums(values, turn);
    return values[0];
}

// `length` elements side by side as one access loads them: 16 bytes, or a single element. They stay packed, since two
// elements of 16 bits share a register, and become floats where they are used.
template <typename Element, int length> struct Run {
    static_assert(length == lanes_of<Element>, "a run is 16 bytes or one element");
    uint4 raw;

    __device__ inline float operator[](int i) const {
        Element elements[length];
        memcpy(elements, &raw, 16);
        return to_float(elements[i]);
    }
};

template <typename Element> struct Run<Element, 1> {
    Element raw;

    __device__ inline float operator[](int) const { return to_float(raw); }
};

// The run of a row at column `col`, zeros beyond the row's end. Longer runs want stride 1, a row that begins at a
// multiple of 16 bytes, and columns that are a multiple of their length.
template <int length, typename Element>
__device__ inline Run<Element, length> load_run(const Element* row, long long stride, int col, int cols) {
    if constexpr (length == 1) {
        return {col < cols ? row[col * stride] : from_float<Element>(0.0f)};
    } else {
        return {col < cols ? *reinterpret_cast<const uint4*>(row + col) : make_uint4(0, 0, 0, 0)};
    }
}

template <typename Element, int length>
__device__ inline void store_run(Element* target, const float (&values)[length]) {
    if constexpr (length == 1) {
        *target = from_float<Element>(values[0]);
    } else {
        store16(target, values);
    }
}

// Sums over the warps of a block (32, blockDim.y), a column to a lane; the first warp gets them.
template <int count> __device__ inline void column_sums(float (&values)[count]) {
    __shared__ float partials[count][32][32];
#pragma unroll
    for (int i = 0; i < count; ++i) partials[i][threadIdx.y][threadIdx.x] = values[i];
    __syncthreads();
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        for (int warp = 1; warp < blockDim.y; ++warp) values[i] += partials[i][warp][threadIdx.x];
    }
}
