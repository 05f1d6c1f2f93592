// Tiles of rows of BLOCK_D floats in shared memory, for blocks of 16 x 8 threads (ty, tx) without tensor cores.
// Of a product of two tiles thread (ty, tx) has rows ty + 16 r and columns tx + 8 c: with rows PITCH apart its 16-byte
// reads meet no other's bank.
#pragma once
#include "common.cuh"

constexpr int THREADS = 128, PITCH = BLOCK_D + 4;
using Row = float[PITCH];

// The eight threads of one ty, who alone write and read its rows of a tile of scores.
__device__ inline unsigned lanes_of_row() { return 0xffu << threadIdx.x % 32 / 8 * 8; }

// ROWS rows of x from `first` on, zero from row `end` and column `dim` on.
template <int ROWS>
__device__ inline void load_tile(
    Row* tile, const ELEMENT* x, long long row_stride, long long col_stride, int first, int end, int dim) {
    for (int e = threadIdx.x; e < ROWS * BLOCK_D; e += THREADS) {
        const int r = e / BLOCK_D, d = e % BLOCK_D;
        const bool inside = first + r < end && d < dim;
        tile[r][d] = inside ? to_float(x[(first + r) * row_stride + d * col_stride]) : 0.0f;
    }
}

// dots[r][c] = Σ_d rows[ty + 16 r][d] * cols[tx + 8 c][d]
template <int R, int C>
__device__ inline void multiply(float (&dots)[R][C], const Row* rows, const Row* cols, int ty, int tx, int dim) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < C; ++c) dots[r][c] = 0.0f;
    }
#pragma unroll 2
    for (int d = 0; d < dim; d += 4) {
        float4 row[R], col[C];
#pragma unroll
        for (int r = 0; r < R; ++r) row[r] = *reinterpret_cast<const float4*>(&rows[ty + 16 * r][d]);
#pragma unroll
        for (int c = 0; c < C; ++c) col[c] = *reinterpret_cast<const float4*>(&cols[tx + 8 * c][d]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int c = 0; c < C; ++c) {
                dots[r][c] += row[r].x * col[c].x;
                dots[r][c] += row[r].y * col[c].y;
                dots[r][c] += row[r].z * col[c].z;
                dots[r][c] += row[r].w * col[c].w;
            }
        }
    }
}

// acc[r][c] += Σ_j weights[ty + 16 r][j] * rows[j][4 tx + 32 c ...], four columns at a time, over `count` rows.
template <int R, int COLS>
__device__ inline void accumulate(
    float4 (&acc)[R][BLOCK_D / 32], const float (*weights)[COLS], const Row* rows, int ty, int tx, int count) {
#pragma unroll 2
    for (int j = 0; j < count; ++j) {
        float weight[R];
#pragma unroll
        for (int r = 0; r < R; ++r) weight[r] = weights[ty + 16 * r][j];
#pragma unroll
        for (int c = 0; c < BLOCK_D / 32; ++c) {
            const float4 x = *reinterpret_cast<const float4*>(&rows[j][4 * tx + 32 * c]);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                acc[r][c].x += weight[r] * x.x;
                acc[r][c].y += weight[r] * x.y;
                acc[r][c].z += weight[r] * x.z;
                acc[r][c].w += weight[r] * x.w;
            }
        }
    }
}

// Row `i` of a contiguous (rows, dim) output from what accumulate left, times `factor`.
__device__ inline void store_row(
    ELEMENT* out, long long i, const float4 (&acc)[BLOCK_D / 32], float factor, int tx, int dim) {
#pragma unroll
    for (int c = 0; c < BLOCK_D / 32; ++c) {
        const float values[4] = {acc[c].x, acc[c].y, acc[c].z, acc[c].w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int d = 4 * tx + 32 * c + e;
            if (d < dim) out[i * dim + d] = from_float<ELEMENT>(values[e] * factor);
        }
    }
}
