// The main loop of `tensorcore`: tiles come by cp.async, STAGES of them under way, and warps multiply them in pieces of
// 16 by 16 by 8 with float accumulators. TILE_M, TILE_N, TILE_K and STAGES come from the launcher (gemm.py: by_warps);
// ELEMENT is a 16-bit type.
#pragma once
#include "gemm.cuh"
#include "ptx.cuh"

constexpr int WARP = TILE_N / 2;  // a warp has a square of the tile
constexpr int WARPS_N = 2, THREADS = TILE_M / WARP * WARPS_N * 32, RESIDENT = THREADS > 128 ? 1 : 2;
constexpr int CHUNK = 8;        // elements of 16 bytes, what cp.async and a row of ldmatrix move
constexpr int DEPTH = TILE_K, A_TILE = TILE_M * DEPTH, STAGE = A_TILE + TILE_N * DEPTH;  // elements
constexpr int SPAN = 2;         // neighbouring results of a thread
constexpr int PAIR = 8;         // columns of one mma, one after the other from two operands side by side

// A tile lies in shared memory as in global memory, rows of `chunks` chunks. Chunks of a row change places, so that the
// same chunk of eight rows, which is one matrix of ldmatrix, has all banks.
template <int LENGTH, bool ALONG_K> constexpr int chunks = (ALONG_K ? DEPTH : LENGTH) / CHUNK;

template <int LENGTH, bool ALONG_K> __device__ inline int turned(int row, int chunk) {
    constexpr int TURNS = chunks<LENGTH, ALONG_K> < 8 ? chunks<LENGTH, ALONG_K> : 8;
    return chunk ^ row * TURNS / 8 % TURNS;
}

// Where in a tile the piece that begins at (i, k) lies.
template <int LENGTH, bool ALONG_K> __device__ inline int place_of(int i, int k) {
    const int row = ALONG_K ? i : k, chunk = (ALONG_K ? k : i) / CHUNK;
    return (row * chunks<LENGTH, ALONG_K> + turned<LENGTH, ALONG_K>(row, chunk)) * CHUNK;
}

template <int LENGTH, bool ALONG_K>
__device__ inline void fetch(ELEMENT* tile, Walk<LENGTH, DEPTH, THREADS, ALONG_K>& way) {
    using Way = Walk<LENGTH, DEPTH, THREADS, ALONG_K>;
    constexpr int CHUNKS = chunks<LENGTH, ALONG_K>;
    tile += place_of<LENGTH, ALONG_K>(way.i, way.k);
    if (way.wide && way.valid(Way::COUNT - 1) >= CHUNK) {  // then all are whole, and few instructions part the products
        const ELEMENT* source = way.source;
        const long long hop = ALONG_K ? Way::HOP / way.share * way.stride : Way::HOP * way.stride_k;
#pragma unroll
        for (int piece = 0; piece < Way::COUNT; ++piece, source += hop) {  // HOP is a multiple of 8: the same turn
            cp_async_16(tile + piece * Way::HOP * CHUNKS * CHUNK, source);
        }
    } else if (way.wide) {
#pragma unroll 1
        for (int piece = 0; piece < Way::COUNT; ++piece) {
            const int valid = min(max(way.valid(piece), 0), CHUNK);
            cp_async_16(tile + piece * Way::HOP * CHUNKS * CHUNK, way.at(piece), valid * 2);
        }
    } else {
#pragma unroll 1  // unrolled it spills
        for (int number = 0; number < Way::COUNT * CHUNK; ++number) {
            const int piece = number / CHUNK, j = number % CHUNK;
            tile[piece * Way::HOP * CHUNKS * CHUNK + j] =
                j < way.valid(piece) ? way.at(piece)[j * way.step()] : from_float<ELEMENT>(0.0f);
        }
    }
    way.next();
}

// Four 8 x 8 matrices of an operand: of a those of 16 rows by 16 of k in the order of mma's registers, of b those of
// 16 columns, two registers for the first eight of them and two for the others.
template <int LENGTH, bool ALONG_K, bool LEFT>
__device__ inline void load_fragment(unsigned (&fragment)[4], const ELEMENT* tile, int place, int k) {
    constexpr int CHUNKS = chunks<LENGTH, ALONG_K>;
    const int lane = threadIdx.x % 32;
    const int down = ALONG_K == LEFT ? lane % 16 : lane / 16 * 8 + lane % 8;
    const int right = ALONG_K == LEFT ? lane / 16 : lane / 8 % 2;
    const int row = ALONG_K ? place : k, chunk = (ALONG_K ? k : place) / CHUNK;  // multiples of 16 and of 2
    const ELEMENT* source = tile + ((row + down) * CHUNKS + (chunk ^ turned<LENGTH, ALONG_K>(down, right))) * CHUNK;
    if (ALONG_K) ldmatrix_x4(fragment, source);
    else ldmatrix_x4_trans(fragment, source);
}

// A thread's place in the tile: sum[i][j] holds columns col(j) and col(j) + 1 of row(i), then of row(i) + 8.
struct Place {
    int y, x;

    __device__ Place() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        y = warp / WARPS_N * WARP + lane / 4;
        x = warp % WARPS_N * WARP + lane % 4 * 2;
    }

    __device__ int row(int i) const { return y + i * 16; }
    __device__ int col(int j) const { return x + j * 8; }
};

using Sums = float[WARP / 16][WARP / 8][4];

// What a warp multiplies in one step of 16 along k.
template <bool A_ALONG_K, bool B_ALONG_K> struct Fragments {
    unsigned left[WARP / 16][4], right[WARP / 16][4];

    __device__ void load(const ELEMENT* stage, int k) {
        const int warp = threadIdx.x / 32, y = warp / WARPS_N * WARP, x = warp % WARPS_N * WARP;
#pragma unroll
        for (int i = 0; i < WARP / 16; ++i) {
            load_fragment<TILE_M, A_ALONG_K, true>(left[i], stage, y + i * 16, k);
            load_fragment<TILE_N, B_ALONG_K, false>(right[i], stage + A_TILE, x + i * 16, k);
        }
    }

    __device__ void multiply(Sums& sum) const {
#pragma unroll
        for (int i = 0; i < WARP / 16; ++i)
#pragma unroll
            for (int j = 0; j < WARP / 8; ++j) {
                const unsigned column[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
                mma_m16n8k16(sum[i][j], left[i], column, sum[i][j], ELEMENT());
            }
    }
};

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void accumulate(
    Sums& sum, Walk<TILE_M, DEPTH, THREADS, A_ALONG_K> a, Walk<TILE_N, DEPTH, THREADS, B_ALONG_K> b, int K,
    ELEMENT* shared
) {
    const int steps = (K + DEPTH - 1) / DEPTH;
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(shared + step * STAGE, a), fetch(shared + step * STAGE + A_TILE, b);
        cp_async_commit();
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    Fragments<A_ALONG_K, B_ALONG_K> fragments[2];  // those of the next 16 come while these are multiplied
    if (steps) fragments[0].load(shared, 0);
    for (int step = 0; step < steps; ++step) {
        const ELEMENT* stage = shared + step % STAGES * STAGE;
#pragma unroll
        for (int i = 0; i < DEPTH / 16; ++i) {
            if (i == DEPTH / 16 - 1) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has come for all, and all have read this one
                stage = shared + min(step + 1, steps - 1) % STAGES * STAGE;
            }
            fragments[(i + 1) % 2].load(stage, (i + 1) * 16 % DEPTH);
            if (i == 0) {
                ELEMENT* last = shared + (step + STAGES - 1) % STAGES * STAGE;
                if (step + STAGES - 1 < steps) fetch(last, a), fetch(last + A_TILE, b);
                cp_async_commit();  // an empty group too: the wait counts groups
            }
            fragments[i % 2].multiply(sum);
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
    const Walk<TILE_M, DEPTH, THREADS, true> a_k(a, first.m);
    const Walk<TILE_M, DEPTH, THREADS, false> a_m(a, first.m);
    const Walk<TILE_N, DEPTH, THREADS, true> b_k(even, odd, first.n, group);
    const Walk<TILE_N, DEPTH, THREADS, false> b_n(even, odd, first.n, group);
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
    multiply(sum, a, b, b, first, TILE_N);
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
