// The main loop of `warptiled`: a block's tile is cut into tiles of warps, and those into quads of four by four, a lane
// each, so that a warp reads few distinct words. TILE and RESULTS come from the launcher.
#pragma once
#include "gemm.cuh"

constexpr int THREADS = (TILE / RESULTS) * (TILE / RESULTS);  // of a block
constexpr int DEPTH = 2 * lanes_of<ELEMENT>;
constexpr int PITCH = TILE + 4;  // rows stay on 16 bytes, and transposed stores meet fewer bank conflicts
constexpr int LANES_Y = 8, LANES_X = 4;
constexpr int SPAN = 4;               // neighbouring results of a thread
constexpr int PAIR = SPAN * LANES_X;  // a thread's columns j and j + 4 are as far apart

using Sums = float[RESULTS][RESULTS];

// A thread's place in the tile: sum[i][j] belongs to row(i) and col(j).
struct Place {
    int y, x;

    __device__ Place() {
        constexpr int WARPS_X = TILE / (LANES_X * RESULTS);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        y = warp / WARPS_X * LANES_Y * RESULTS + lane / LANES_X * SPAN;
        x = warp % WARPS_X * LANES_X * RESULTS + lane % LANES_X * SPAN;
    }

    __device__ int row(int i) const { return y + i / SPAN * SPAN * LANES_Y + i % SPAN; }
    __device__ int col(int j) const { return x + j / SPAN * PAIR + j % SPAN; }
};

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void accumulate(
    Sums& sum, const Walk<TILE, DEPTH, THREADS, A_ALONG_K>& a,
    const Walk<TILE, DEPTH, THREADS, B_ALONG_K>& b, int K, float (&a_tile)[2][DEPTH * PITCH],
    float (&b_tile)[2][DEPTH * PITCH]
) {
    const Place place;
    Stage<TILE, DEPTH, THREADS, PITCH, A_ALONG_K> a_stage{a};
    Stage<TILE, DEPTH, THREADS, PITCH, B_ALONG_K> b_stage{b};
    a_stage.load(), b_stage.load();
    a_stage.store(a_tile[0]), b_stage.store(b_tile[0]);
    __syncthreads();
    for (int start = 0, now = 0; start < K; start += DEPTH, now ^= 1) {
        const bool more = start + DEPTH < K;
        if (more) a_stage.load(), b_stage.load();  // under way while this tile is multiplied
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float left[RESULTS], right[RESULTS];
#pragma unroll
            for (int i = 0; i < RESULTS; i += 4) {
                load4(left + i, a_tile[now] + k * PITCH + place.row(i));
                load4(right + i, b_tile[now] + k * PITCH + place.col(i));
            }
#pragma unroll
            for (int i = 0; i < RESULTS; ++i)
#pragma unroll
                for (int j = 0; j < RESULTS; ++j) sum[i][j] += left[i] * right[j];
        }
        if (more) a_stage.store(a_tile[now ^ 1]), b_stage.store(b_tile[now ^ 1]);
        __syncthreads();  // the next tile is there, and this one has been read
    }
}

// sum += this block's tile of a times `even` and `odd` side by side, `group` columns of each in turn.
// One loop for each layout of the operands: what a layout decides costs registers where it is decided at run time.
__device__ inline void multiply(
    Sums& sum, const Operand& a, const Operand& even, const Operand& odd, Corner first, int group = PAIR
) {
    __shared__ __align__(16) float a_tile[2][DEPTH * PITCH];
    __shared__ __align__(16) float b_tile[2][DEPTH * PITCH];
    const Walk<TILE, DEPTH, THREADS, true> a_k(a, first.m), b_k(even, odd, first.n, group);
    const Walk<TILE, DEPTH, THREADS, false> a_m(a, first.m), b_n(even, odd, first.n, group);
    if (a.along_k()) {
        if (even.along_k()) accumulate(sum, a_k, b_k, a.depth, a_tile, b_tile);
        else accumulate(sum, a_k, b_n, a.depth, a_tile, b_tile);
    } else {
        if (even.along_k()) accumulate(sum, a_m, b_k, a.depth, a_tile, b_tile);
        else accumulate(sum, a_m, b_n, a.depth, a_tile, b_tile);
    }
}

// sum += this block's tile of a times that of b.
__device__ inline void multiply(Sums& sum, const Operand& a, const Operand& b, Corner first) {
    multiply(sum, a, b, b, first, TILE);
}

// Calls finish(m, n, values) with each SPAN neighbouring results of this thread, in rows below M.
template <typename Finish>
__device__ inline void each_span(const Sums& sum, Corner first, int M, const Finish& finish) {
    const Place place;
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first.m + place.row(i);
#pragma unroll
        for (int j = 0; j < RESULTS; j += SPAN) {
            if (m < M) finish(m, first.n + place.col(j), &sum[i][j]);
        }
    }
}

// After a product with two operands side by side: calls finish(m, n, even, odd) with both results for the same columns.
template <typename Finish>
__device__ inline void each_pair(const Sums& sum, Corner first, int M, const Finish& finish) {
    const Place place;
    const int n = first.n + place.x / (2 * PAIR) * PAIR + place.x % PAIR;
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first.m + place.row(i);
        if (m < M) finish(m, n, &sum[i][0], &sum[i][RESULTS / 2]);
    }
}
