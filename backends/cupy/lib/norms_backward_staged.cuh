// What the gradients of the norms need whose rows wait in shared memory.
#pragma once
#include "staged_rows.cuh"

// The sums of the block's rows to one row of partial sums, through shared memory that nobody needs any longer.
__device__ inline void store_sums(float* partial, const float (&sums)[columns], float* room, int cols) {
    const int span = blockDim.x * columns, thread = threadIdx.y * blockDim.x + threadIdx.x;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < columns; ++i) room[threadIdx.y * span + column(i / lanes) + i % lanes] = sums[i];
    __syncthreads();
    for (int col = thread; col < min(cols, span); col += blockDim.x * blockDim.y) {
        float total = room[col];
        for (int y = 1; y < blockDim.y; ++y) total += room[y * span + col];
        partial[col] = total;
    }
}

// One number of a row, 0 where there is none.
__device__ inline float statistic(const float* given, long long stride, long long row, long long rows) {
    return given && row < rows ? given[row * stride] : 0.0f;
}
