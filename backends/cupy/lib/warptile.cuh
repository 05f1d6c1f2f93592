// The main loop of `warptiled`: a block's tile is cut into tiles of warps, and those into quads of four by four, a lane
// each, so that a warp reads few distinct words. TILE_M and TILE_N, and ROWS and COLS of a thread, come from the
// launcher.
#pragma once
#include "gemm.cuh"

constexpr int THREADS = (TILE_M / ROWS) * (TILE_N / COLS), RESIDENT = 256 / THREADS;  // of a block; blocks side by side
constexpr int DEPTH = 2 * lanes_of<ELEMENT>;
constexpr int PITCH_M = TILE_M + 4, PITCH_N = TILE_N + 4;  // on 16 bytes; transposed stores meet fewer bank conflicts
constexpr int LANES_Y = 8, LANES_X = 4;
constexpr int SPAN = 4;               // neighbouring results of a thread
constexpr int PAIR = SPAN * LANES_X;  // a thread's columns j and j + SPAN are as far apart

using Sums = float[ROWS][COLS];

// A thread's place in the tile: sum[i][j] belongs to row(i) and col(j).
struct Place {
    int y, x;

    __device__ Place() {
        constexpr int WARPS_X = TILE_N / (LANES_X * COLS);
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        y = warp / WARPS_X * LANES_Y * ROWS + lane / LANES_X * SPAN;
        x = warp % WARPS_X * LANES_X * COLS + lane % LANES_X * SPAN;
    }

    __device__ int row(int i) const { return y + i / SPAN * SPAN * LANES_Y + i % SPAN; }
    __device__ int col(int j) const { return x + j / SPAN * PAIR + j % SPAN; }
};

// What a thread multiplies at one k.
struct Factors {
    float left[ROWS], right[COLS];

    __device__ void load(const float* a_row, const float* b_row, const Place& place) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) load4(left + i, a_row + place.row(i));
#pragma unroll
        for (int j = 0; j < COLS; j += 4) load4(right + j, b_row + place.col(j));
    }

    __device__ void multiply(Sums& sum) const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) sum[i][j] += left[i] * right[j];
    }
};

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void accumulate(
    Sums& sum, const Walk<TILE_M, DEPTH, THREADS, A_ALONG_K>& a,
    const Walk<TILE_N, DEPTH, THREADS, B_ALONG_K>& b, int K, float (&a_tile)[2][DEPTH * PITCH_M],
    float (&b_tile)[2][DEPTH * PITCH_N]
) {
    const Place place;
    Stage<TILE_M, DEPTH, THREADS, PITCH_M, A_ALONG_K> a_stage{a};
    Stage<TILE_N, DEPTH, THREADS, PITCH_N, B_ALONG_K> b_stage{b};
    a_stage.load(), b_stage.load();
    a_stage.store(a_tile[0]), b_stage.store(b_tile[0]);
    __syncthreads();
    Factors factors[2];  // the next come while these are multiplied
    factors[0].load(a_tile[0], b_tile[0], place);
    for (int start = 0, now = 0; start < K; start += DEPTH) {
        const bool more = start + DEPTH < K;
        if (more) a_stage.load(), b_stage.load();  // under way while this tile is multiplied
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k == DEPTH - 1) {
                if (more) now ^= 1, a_stage.store(a_tile[now]), b_stage.store(b_tile[now]);
                __syncthreads();  // the next tile is there, and this one has been read
            }
            const int next = (k + 1) % DEPTH;
            factors[next % 2].load(a_tile[now] + next * PITCH_M, b_tile[now] + next * PITCH_N, place);
            factors[k % 2].multiply(sum);
        }
    }
}

// sum += this block's tile of a times `even` and `odd` side by side, `group` columns of each in turn.
// One loop for each layout of the operands: what a layout decides costs registers where it is decided at run time.
__device__ inline void multiply(
    Sums& sum, const Operand& a, const Operand& even, const Operand& odd, Corner first, int group = PAIR
) {
    __shared__ __align__(16) float a_tile[2][DEPTH * PITCH_M];
    __shared__ __align__(16) float b_tile[2][DEPTH * PITCH_N];
    const Walk<TILE_M, DEPTH, THREADS, true> a_k(a, first.m);
    const Walk<TILE_M, DEPTH, THREADS, false> a_m(a, first.m);
    const Walk<TILE_N, DEPTH, THREADS, true> b_k(even, odd, first.n, group);
    const Walk<TILE_N, DEPTH, THREADS, false> b_n(even, odd, first.n, group);
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
    multiply(sum, a, b, b, first, TILE_N);
}

// Calls finish(m, n, values) with each SPAN neighbouring results of this thread, in rows below M.
template <typename Finish>
__device__ inline void each_span(const Sums& sum, Corner first, int M, const Finish& finish) {
    const Place place;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int m = first.m + place.row(i);
#pragma unroll
        for (int j = 0; j < COLS; j += SPAN) {
            if (m < M) finish(m, first.n + place.col(j), &sum[i][j]);
        }
    }
}

// After a product with two operands side by side: calls finish(m, n, even, odd) with both results for the same columns.
template <typename Finish>
__device__ inline void each_pair(const Sums& sum, Corner first, int M, const Finish& finish) {
    const Place place;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int m = first.m + place.row(i);
#pragma unroll
        for (int j = 0; j < COLS; j += 2 * SPAN) {
            const int col = place.col(j), n = first.n + col / (2 * PAIR) * PAIR + col % PAIR;
            if (m < M) finish(m, n, &sum[i][j], &sum[i][j + SPAN]);
        }
    }
}
