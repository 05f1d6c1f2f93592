// The queries of all heads are the rows of products with a tile of the cache, which is read once, as keys and as values.
// Eight warps share it: for the scores each takes 16 keys and a part of the depth, for o each takes BLOCK_V columns.
constexpr int WARPS = 8, THREADS = 32 * WARPS, BLOCK_N = 32;
#include "group_rows.cuh"

constexpr int KEY_GROUPS = BLOCK_N / 16, QUARTERS = WARPS / KEY_GROUPS, DEPTH = BLOCK_D / QUARTERS;
constexpr int TILE = BLOCK_N * BLOCK_D, PITCH = BLOCK_N + 8;  // of a row of partial scores: no two lanes on one bank

// What each warp adds to the scores.
using Partial = float[QUARTERS][ROWS][PITCH];

__device__ inline void add_scores(Partial& partial, const ELEMENT* q_tile, const ELEMENT* tile, int warp, int lane) {
    const int key = warp % KEY_GROUPS * 16, quarter = warp / KEY_GROUPS;
    float s[ROW_TILES][2][4] = {};
#pragma unroll
    for (int d = 0; d < DEPTH; d += 16) {
        unsigned a[4], b[4];
        ldmatrix_x4(b, across<BLOCK_D>(tile, key, quarter * DEPTH + d, lane));
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            ldmatrix_x4(a, down<BLOCK_D>(q_tile, 16 * t, quarter * DEPTH + d, lane));
            multiply(s[t][0], s[t][1], a, b);
        }
    }
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float* row = &partial[quarter][16 * t + 8 * h + lane / 4][key + lane % 4 * 2];
            *reinterpret_cast<float2*>(row) = make_float2(s[t][0][2 * h], s[t][0][2 * h + 1]);
            *reinterpret_cast<float2*>(row + 8) = make_float2(s[t][1][2 * h], s[t][1][2 * h + 1]);
        }
    }
}

// The scores of all keys of the tile, in the layout of a product's result.
__device__ inline void collect(Scores& s, const Partial& partial, int lane) {
    clear(s);
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int q = 0; q < 2 * QUARTERS; ++q) {
                const int h = q % 2;
                const float* row = &partial[q / 2][16 * t + 8 * h + lane / 4][8 * n + lane % 4 * 2];
                const float2 pair = *reinterpret_cast<const float2*>(row);
                s[t][n][2 * h] += pair.x;
                s[t][n][2 * h + 1] += pair.y;
            }
        }
    }
}

// The warp's columns of o, from `first` on, to row r * step of `o` for row r of the `rows` that exist; lse once.
__device__ inline void write(
    float* o, float* lse, const Output& acc, const Rows& m, const Rows& l, int step, int rows, int first, int dim_v,
    int lane) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = total(l[t][h]), inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
            const int r = 16 * t + 8 * h + lane / 4;
            if (r >= rows) continue;
#pragma unroll
            for (int n = 0; n < BLOCK_V / 8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int d = first + 8 * n + lane % 4 * 2 + e;
                    if (d < dim_v) o[(long long)r * step * dim_v + d] = acc[t][n][2 * h + e] * inverse;
                }
            }
            if (first == 0 && lane % 4 == 0) lse[(long long)r * step] = shift(m[t][h]) * LN_2 + logf(sum);
        }
    }
}

// `keys` of the cache for each of gridDim.y parts; `scale` carries log2 e.
extern "C" __global__ __launch_bounds__(THREADS) void mla_decode_tensorcore(
    const ELEMENT* q, const ELEMENT* cache, const int* lengths, float* parts, float* part_lse, long long q_b,
    long long q_h, long long q_s, long long q_d, long long c_b, long long c_s, long long c_d, long long length_stride,
    float scale, int heads, int seq, int width, int dim_v, int keys) {
    extern __shared__ uint4 shared[];
    __shared__ alignas(8) Partial partial;
    ELEMENT* q_tile = reinterpret_cast<ELEMENT*>(shared);
    ELEMENT* stages = q_tile + ROWS * BLOCK_D;
    const int rows = heads * seq, tiles = (rows + ROWS - 1) / ROWS, top = blockIdx.x % tiles * ROWS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, splits = gridDim.y;
    const long long b = blockIdx.x / tiles, place = (b * rows + top) * splits + blockIdx.y;
    const int length = lengths[b * length_stride], first = blockIdx.y * keys, last = min(first + keys, length);
    const Queries queries{q + b * q_b, q_h, q_s, q_d, rows, seq, length - seq};
    cache += b * c_b;
    if (first >= last) return no_keys(part_lse + place, splits, rows - top);
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        const int start = first + stage * BLOCK_N;
        if (start < last) load_tile<BLOCK_N, BLOCK_D>(stages + stage * TILE, cache, c_s, c_d, start, last, width);
        cp_async_commit();  // an empty group too: the wait counts groups
    }
    load_queries(q_tile, queries, top, width, scale < 0.0f ? -1.0f : 1.0f);
    scale = fabsf(scale);  // the maximum of s * scale is that of -s * |scale|

    Output acc = {};
    Rows m, l = {};
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) m[t][0] = m[t][1] = -INFINITY;
    for (int start = first, turn = 0; start < last; start += BLOCK_N, ++turn) {
        const ELEMENT* tile = stages + turn % STAGES * TILE;
        ELEMENT* ahead = stages + (turn + STAGES - 1) % STAGES * TILE;
        const int next = start + (STAGES - 1) * BLOCK_N;
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the tile is there, and the one before is used
        if (next < last) load_tile<BLOCK_N, BLOCK_D>(ahead, cache, c_s, c_d, next, last, width);
        cp_async_commit();
        add_scores(partial, q_tile, tile, warp, lane);
        __syncthreads();
        Scores s;
        collect(s, partial, lane);
        const bool full = start + BLOCK_N <= queries.limit(0, last);
        if (!full) mask(s, scale, start, lane, [&](int r) { return queries.limit(top + r, last); });
        softmax(s, acc, m, l, full ? scale : 1.0f);
        values(acc, s, tile, lane, warp * BLOCK_V);
    }
    cp_async_wait<0>();
    write(parts + place * dim_v, part_lse + place, acc, m, l, splits, rows - top, warp * BLOCK_V, dim_v, lane);
}
