// Attention of a few queries over a cache. The query heads of a key head, and their queries, are the rows of one
// product, so that a key is read once for all of them. Each warp has tiles of BLOCK_N keys of its own, STAGES of them
// in shared memory, and waits for no other until their parts of o are merged.
#pragma once
constexpr int WARPS = 4, THREADS = 32 * WARPS, BLOCK_N = 16;
#include "group_rows.cuh"

constexpr int TILE = BLOCK_N * BLOCK_D;  // elements of one tile of keys, or of values
constexpr int PITCH = BLOCK_D + 8;       // floats of a row of a warp's o, where the warps meet
constexpr int HOP = WARPS * BLOCK_N;     // keys from a warp's tile to its next one
static_assert(ROWS * PITCH * 4 <= STAGES * 2 * TILE * 2, "a warp's o takes the place of its tiles");

// Where a key and its value begin.
struct KeyValue {
    const ELEMENT *key, *value;
};

// A head of keys and values, a row each after another.
struct Head {
    const ELEMENT *k, *v;
    long long k_s, k_d, v_s, v_d;

    __device__ KeyValue start() const { return {k, v}; }
    __device__ KeyValue at(long long j) const { return {k + j * k_s, v + j * v_s}; }
    __device__ long long key_step() const { return k_d; }
    __device__ long long value_step() const { return v_d; }
};

// A warp's keys from `first` on, then their values, zero from key `end` and column `dim` on. Where ALIGNED the copies
// are only started.
template <typename Cache>
__device__ inline void fetch(ELEMENT* stage, const Cache& cache, int first, int end, int dim, int lane) {
    if constexpr (ALIGNED) {  // eight lanes per row: their pieces make a line of 128 bytes
#pragma unroll
        for (int i = 0; i < BLOCK_N / 4; ++i) {
            const int r = i * 4 + lane / 8;
            const bool exists = first + r < end;
            const KeyValue at = exists ? cache.at(first + r) : cache.start();
#pragma unroll
            for (int n = 0; n < BLOCK_D / 64; ++n) {
                const int d = n * 64 + lane % 8 * 8;
                const int bytes = exists && d < dim ? 16 : 0;
                cp_async_16(stage + place<BLOCK_D>(r, d), at.key + d, bytes);
                cp_async_16(stage + TILE + place<BLOCK_D>(r, d), at.value + d, bytes);
            }
        }
    } else {
        for (int e = lane; e < TILE; e += 32) {
            const int r = e / BLOCK_D, d = e % BLOCK_D;
            const bool inside = first + r < end && d < dim;
            const KeyValue at = inside ? cache.at(first + r) : cache.start();
            ELEMENT* target = stage + place<BLOCK_D>(r, d);
            target[0] = inside ? at.key[d * cache.key_step()] : from_float<ELEMENT>(0.0f);
            target[TILE] = inside ? at.value[d * cache.value_step()] : from_float<ELEMENT>(0.0f);
        }
    }
}

// The warps' parts of o, merged, to row `first` + r * step of `o` and `lse` for row r of the `rows` that exist.
__device__ inline void merge_warps(
    float* o, float* lse, const Output& acc, const Rows& m, const Rows& l, long long first, int step, int rows, int dim,
    float* warps) {
    __shared__ float maxima[WARPS][ROWS], sums[WARPS][ROWS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = 16 * t + 8 * h + lane / 4;
            const float sum = total(l[t][h]);
            if (lane % 4 == 0) maxima[warp][r] = m[t][h], sums[warp][r] = sum;
            float* row = warps + (warp * ROWS + r) * PITCH + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < BLOCK_D / 8; ++n) {
                row[8 * n] = acc[t][n][2 * h];
                row[8 * n + 1] = acc[t][n][2 * h + 1];
            }
        }
    }
    __syncthreads();
    for (int r = threadIdx.x / 8; r < min(ROWS, rows); r += THREADS / 8) {
        float top = -INFINITY, sum = 0.0f, weight[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, maxima[w][r]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            weight[w] = exp2f(maxima[w][r] - shift(top));
            sum += weight[w] * sums[w][r];
        }
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        for (int d = threadIdx.x % 8; d < dim; d += 8) {
            float merged = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) merged += weight[w] * warps[(w * ROWS + r) * PITCH + d];
            o[(first + (long long)r * step) * dim + d] = merged * inverse;
        }
        if (threadIdx.x % 8 == 0) lse[first + (long long)r * step] = shift(top) * LN_2 + logf(sum);
    }
}

// Rows `top` to top + ROWS - 1 of q over the keys `first` to `last` - 1, all of which are filled; `scale` carries
// log2 e. Row r of o and lse is first_row + r * step.
template <typename Cache>
__device__ inline void attend(
    const Queries& q, const Cache& cache, float* o, float* lse, long long first_row, int step, int top, int first,
    int last, int dim, float scale) {
    extern __shared__ uint4 shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ELEMENT* q_tile = reinterpret_cast<ELEMENT*>(shared);
    ELEMENT* stages = q_tile + ROWS * BLOCK_D;
    ELEMENT* mine = stages + warp * STAGES * 2 * TILE;
    if (first >= last) return no_keys(lse + first_row, step, q.rows - top);
    first += warp * BLOCK_N;
    const int tiles = first < last ? (last - first + HOP - 1) / HOP : 0;
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < tiles) fetch(mine + tile * 2 * TILE, cache, first + tile * HOP, last, dim, lane);
        cp_async_commit();  // an empty group too: the wait counts groups
    }
    load_queries(q_tile, q, top, dim, scale < 0.0f ? -1.0f : 1.0f);
    scale = fabsf(scale);  // the maximum of s * scale is that of -s * |scale|
    __syncthreads();

    Output acc = {};
    Rows m, l = {};
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) m[t][0] = m[t][1] = -INFINITY;
    for (int tile = 0; tile < tiles; ++tile) {
        const int start = first + tile * HOP, next = tile + STAGES - 1;
        const ELEMENT* stage = mine + tile % STAGES * 2 * TILE;
        cp_async_wait<STAGES - 2>();
        __syncwarp();  // the tile is there for all lanes, and they have used the one before
        if (next < tiles) fetch(mine + next % STAGES * 2 * TILE, cache, first + next * HOP, last, dim, lane);
        cp_async_commit();
        Scores s;
        clear(s);
        scores<BLOCK_D>(s, q_tile, stage, 0, lane);
        const bool full = start + BLOCK_N <= q.limit(0, last);
        if (!full) mask(s, scale, start, lane, [&](int r) { return q.limit(top + r, last); });
        softmax(s, acc, m, l, full ? scale : 1.0f);
        values(acc, s, stage + TILE, lane);
    }
    cp_async_wait<0>();
    __syncthreads();  // nobody uses tiles any more
    merge_warps(o, lse, acc, m, l, first_row, step, q.rows - top, dim, reinterpret_cast<float*>(stages));
}
