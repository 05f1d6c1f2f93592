// The main loop of `tensorcore`: tiles come by cp.async, STAGES of them under way, and warps multiply them in pieces of
// 16 by 16 by 8 with float accumulators. TILE comes from the launcher; ELEMENT is a 16-bit type.
#pragma once
#include "gemm.cuh"
#include "ptx.cuh"

constexpr int THREADS = 128, DEPTH = 32, STAGES = 4;
constexpr int WARP = TILE / 2;  // four warps, each a quarter of the tile
constexpr int CHUNK = 8;        // elements of 16 bytes, what cp.async and a row of ldmatrix move
constexpr int STAGE = 2 * TILE * DEPTH;  // elements of a and of b
constexpr int SPAN = 2;         // neighbouring results of a thread
constexpr int PAIR = 8;         // columns of one mma, one after the other from two operands side by side

// A tile lies in shared memory as in global memory, rows of `chunks` chunks. Chunks of a row change places, so that the
// same chunk of eight rows, which is one matrix of ldmatrix, has all banks.
template <bool ALONG_K> constexpr int chunks = (ALONG_K ? DEPTH : TILE) / CHUNK;

template <bool ALONG_K> __device__ inline int turned(int row, int chunk) {
    constexpr int TURNS = chunks<ALONG_K> < 8 ? chunks<ALONG_K> : 8;
    return chunk ^ row * TURNS / 8 % TURNS;
}

template <bool ALONG_K> __device__ inline void fetch(ELEMENT* tile, Walk<TILE, DEPTH, THREADS, ALONG_K>& way) {
    using Way = Walk<TILE, DEPTH, THREADS, ALONG_K>;
    const int row = ALONG_K ? way.i : way.k, chunk = (ALONG_K ? way.k : way.i) / CHUNK;
    tile += (row * chunks<ALONG_K> + turned<ALONG_K>(row, chunk)) * CHUNK;
#pragma unroll
    for (int piece = 0; piece < Way::COUNT; ++piece) {
        ELEMENT* target = tile + piece * Way::HOP * chunks<ALONG_K> * CHUNK;  // HOP is a multiple of 8: the same turn
        const ELEMENT* source = way.at(piece);
        const int valid = min(max(way.valid(piece), 0), CHUNK);
        if (way.wide) {
            cp_async_16(target, source, valid * 2);
        } else {
#pragma unroll 1  // unrolled it spills
            for (int j = 0; j < CHUNK; ++j) target[j] = j < valid ? source[j * way.step()] : from_float<ELEMENT>(0.0f);
        }
    }
    way.next();
}

// Four 8 x 8 matrices of an operand: of a those of 16 rows by 16 of k in the order of mma's registers, of b those of
// 16 columns, two registers for the first eight of them and two for the others.
template <bool ALONG_K, bool LEFT>
__device__ inline void load_fragment(unsigned (&fragment)[4], const ELEMENT* tile, int place, int k) {
    const int lane = threadIdx.x % 32;
    const int down = ALONG_K == LEFT ? lane % 16 : lane / 16 * 8 + lane % 8;
    const int right = ALONG_K == LEFT ? lane / 16 : lane / 8 % 2;
    const int row = ALONG_K ? place : k, chunk = (ALONG_K ? k : place) / CHUNK;  // multiples of 16 and of 2
    const ELEMENT* source = tile + ((row + down) * chunks<ALONG_K> + (chunk ^ turned<ALONG_K>(down, right))) * CHUNK;
    if (ALONG_K) ldmatrix_x4(fragment, source);
    else ldmatrix_x4_trans(fragment, source);
}

// A thread's place in the tile: sum[i][j] holds columns col(j) and col(j) + 1 of row(i), then of row(i) + 8.
struct Place {
    int y, x;

    __device__ Place() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        y = warp / 2 * WARP + lane / 4;
        x = warp % 2 * WARP + lane % 4 * 2;
    }

    __device__ int row(int i) const { return y + i * 16; }
    __device__ int col(int j) const { return x + j * 8; }
};

using Sums = float[WARP / 16][WARP / 8][4];

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void accumulate(
    Sums& sum, Walk<TILE, DEPTH, THREADS, A_ALONG_K> a, Walk<TILE, DEPTH, THREADS, B_ALONG_K> b, int K, ELEMENT* shared
) {
    const int warp = threadIdx.x / 32, y = warp / 2 * WARP, x = warp % 2 * WARP;
    const int steps = (K + DEPTH - 1) / DEPTH;
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(shared + step * STAGE, a), fetch(shared + step * STAGE + STAGE / 2, b);
        cp_async_commit();
    }
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this stage has come for all, and all have read the stage that is replaced next
        ELEMENT* next = shared + (step + STAGES - 1) % STAGES * STAGE;
        if (step + STAGES - 1 < steps) fetch(next, a), fetch(next + STAGE / 2, b);
        cp_async_commit();  // an empty group too: the wait counts groups
        const ELEMENT* a_tile = shared + step % STAGES * STAGE;
        const ELEMENT* b_tile = a_tile + STAGE / 2;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned left[WARP / 16][4], right[WARP / 16][4];
#pragma unroll
            for (int i = 0; i < WARP / 16; ++i) {
                load_fragment<A_ALONG_K, true>(left[i], a_tile, y + i * 16, k);
                load_fragment<B_ALONG_K, false>(right[i], b_tile, x + i * 16, k);
            }
#pragma unroll
            for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
                for (int j = 0; j < WARP / 8; ++j) {
                    const unsigned column[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
                    mma_m16n8k16(sum[i][j], left[i], column, sum[i][j], ELEMENT());
                }
        }
    }
}

// sum += this block's tile of a times `even` and `odd` side by side, `group` columns of each in turn.
// One loop for each layout of the operands: what a layout decides costs registers where it is decided at run time.
__device__ inline void multiply(
    Sums& sum, const Operand& a, const Operand& even, const Operand& odd, Corner first, int group = PAIR
) {
    extern __shared__ uint4 stages[];
    ELEMENT* shared = reinterpret_cast<ELEMENT*>(stages);
    const Walk<TILE, DEPTH, THREADS, true> a_k(a, first.m), b_k(even, odd, first.n, group);
    const Walk<TILE, DEPTH, THREADS, false> a_m(a, first.m), b_n(even, odd, first.n, group);
    if (a.along_k()) {
        if (even.along_k()) accumulate(sum, a_k, b_k, a.depth, shared);
        else accumulate(sum, a_k, b_n, a.depth, shared);
    } else {
        if (even.along_k()) accumulate(sum, a_m, b_k, a.depth, shared);
        else accumulate(sum, a_m, b_n, a.depth, shared);
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
    for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = first.m + place.row(i) + half * 8;
#pragma unroll
            for (int j = 0; j < WARP / 8; ++j) {
                if (m < M) finish(m, first.n + place.col(j), sum[i][j] + half * SPAN);
            }
        }
}

// After a product with two operands side by side: calls finish(m, n, even, odd) with both results for the same columns.
template <typename Finish>
__device__ inline void each_pair(const Sums& sum, Corner first, int M, const Finish& finish) {
    const Place place;
#pragma unroll
    for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = first.m + place.row(i) + half * 8;
#pragma unroll
            for (int j = 0; j < WARP / 8; j += 2) {
                const int col = place.col(j), n = first.n + col / (2 * PAIR) * PAIR + col % PAIR;
                if (m < M) finish(m, n, sum[i][j] + half * SPAN, sum[i][j + 1] + half * SPAN);
            }
        }
}
