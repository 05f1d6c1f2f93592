// What the warps of a row tell one another, be they of one block or of the CLUSTER blocks of a cluster.
#pragma once
#include "staged_rows.cuh"

// Of each warp of a row's blocks `count` numbers, spread over the lanes of every warp.
template <int count> struct Shares {
    float of[count][CLUSTER];
};

// `other` where a row has fewer warps. Two halves of `numbers` take turns as in row_sums.
template <int count> __device__ inline Shares<count> share(const float (&values)[count], float other, int& turn) {
    __shared__ float numbers[2][count][32 * CLUSTER];
    const int half = turn % 2, lane = threadIdx.x % 32, warps = across() / 32;
    const int own = blockIdx.x % CLUSTER * warps + threadIdx.x / 32;
#if CLUSTER > 1
    tell(numbers, own, values, turn);
#else
    ++turn;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) numbers[half][i][own] = values[i];
    }
    __syncthreads();
#endif
    Shares<count> shares;
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
        for (int k = 0; k < CLUSTER; ++k) {
            shares.of[i][k] = k * 32 + lane < CLUSTER * warps ? numbers[half][i][k * 32 + lane] : other;
        }
    }
    return shares;
}

__device__ inline float sum_of_row(float value, int& turn) {
    const Shares<1> sums = share({warp_sum(value)}, 0.0f, turn);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < CLUSTER; ++k) sum += sums.of[0][k];
    return warp_sum(sum);
}
