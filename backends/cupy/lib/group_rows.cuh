// The queries of all heads that read one key head as the rows of a product: row r is query r % seq of head r / seq.
#pragma once
#include "attention_warps.cuh"
#include "online.cuh"

constexpr int ROWS = 16 * ROW_TILES;  // of q in a block

struct Queries {
    const ELEMENT* first;
    long long h, s, d;
    int rows, seq, ahead;  // query i sees the keys up to i + ahead

    // The key behind the last one below `last` that row r sees.
    __device__ int limit(int r, int last) const { return min(last, r % seq + ahead + 1); }
};

// The rows of q from `top` on, times 1 or -1, zero from row `rows` and column `dim` on.
__device__ inline void load_queries(ELEMENT* tile, const Queries& q, int top, int dim, float sign) {
    for (int r = threadIdx.x / 8; r < ROWS; r += THREADS / 8) {
        const int row = top + r;
        const ELEMENT* source = q.first + row / q.seq * q.h + row % q.seq * q.s;
#pragma unroll
        for (int n = 0; n < BLOCK_D / 8; ++n) {
            const int d = n * 8 + threadIdx.x % 8;
            const float x = row < q.rows && d < dim ? to_float(source[d * q.d]) * sign : 0.0f;
            tile[place<BLOCK_D>(r, d)] = from_float<ELEMENT>(x);
        }
    }
}

// A part without keys says so: the lse of up to ROWS rows, `step` apart.
__device__ inline void no_keys(float* lse, int step, int rows) {
    for (int r = threadIdx.x; r < min(ROWS, rows); r += THREADS) lse[(long long)r * step] = -INFINITY;
}
