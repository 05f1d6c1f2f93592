// Rows that follow one another in the registers of CLUSTER blocks that stay, with the next STAGES rows on their way to
// shared memory.
#pragma once
#include "staged_rows.cuh"

// The rows of a block that stays, each of its threads with VECTORS vectors of every one. Shared memory holds STAGES
// rows: [VECTORS][threads] each.
struct StayingRows {
    const ELEMENT* x;
    long long x_row, x_col, rows, step, row;  // `row`: the one whose values `next` gave
    int begin, own, s = 0;                    // the columns before the block's; those from there on; the stage to take
    uint4* mine;

    __device__ inline StayingRows(
        const ELEMENT* x, long long x_row, long long x_col, long long rows, int cols, uint4* shared) :
        x(x), x_row(x_row), x_col(x_col), rows(rows), step(gridDim.x / CLUSTER), row(blockIdx.x / CLUSTER - step),
        begin(blockIdx.x % CLUSTER * blockDim.x * columns), own(cols - begin), mine(shared + threadIdx.x) {
        this->x += begin * x_col;
        for (int s = 0; s < STAGES; ++s) send_for(place(s), row + (s + 1) * step);
#if CLUSTER > 1
        cluster_arrive();  // a block is written to only after it began
        cluster_wait();
#endif
    }

    __device__ inline uint4* place(int s) const { return mine + s * VECTORS * blockDim.x; }

    // Zeros where there is no such row.
    __device__ inline void send_for(uint4* held, long long row) const {
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            stage(held + r * blockDim.x, x + row * x_row, x_col, column(r), row < rows ? own : 0);
        }
        cp_async_commit();
    }

    // The next row's values, once they are there, and sends for the row that takes their place.
    __device__ inline bool next(Values (&values)[VECTORS]) {
        row += step;
        if (row >= rows) {
            cp_async_wait<0>();
            return false;
        }
        uint4* const held = place(s);
        s = s + 1 == STAGES ? 0 : s + 1;
        cp_async_wait<STAGES - 1>();
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) values[r].raw = held[r * blockDim.x];
        send_for(held, row + STAGES * step);
        return true;
    }
};

// Of each warp of a row's blocks `count` numbers, spread over the lanes of every warp.
template <int count> struct Shares {
    float of[count][CLUSTER];
};

// `other` where a row has fewer warps. Two halves of `numbers` take turns as in row_sums.
template <int count> __device__ inline Shares<count> share(const float (&values)[count], float other, int& turn) {
    __shared__ float numbers[2][count][32 * CLUSTER];
    const int half = turn++ % 2, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int own = blockIdx.x % CLUSTER * warps + threadIdx.x / 32;
#if CLUSTER > 1
    if (lane < CLUSTER) {
#pragma unroll
        for (int i = 0; i < count; ++i) cluster_store(&numbers[half][i][own], lane, values[i]);
    }
    cluster_arrive();
    cluster_wait();
#else
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
