// Online softmax on tensor cores. A warp owns 16 * ROW_TILES queries; scores and o stay in its registers, and scores in
// the layout of a product's result are the left operand of the next. Keys and values arrive by turns: values while the
// scores are formed, the next keys while the values are used. Tiles that causality hides are not visited.
constexpr int THREADS = 32 * WARPS, BLOCK_M = 16 * ROW_TILES * WARPS;
#include "attention_mma.cuh"

using Scores = float[ROW_TILES][BLOCK_N / 8][4];
using Output = float[ROW_TILES][BLOCK_D / 8][4];
using Rows = float[ROW_TILES][2];  // rows group and group + 8 of each 16

__device__ inline void scores(Scores& s, const ELEMENT* q_tile, const ELEMENT* k_tile, int row, int lane) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) s[t][n][e] = 0.0f;
        }
    }
#pragma unroll
    for (int d = 0; d < BLOCK_D; d += 16) {
        unsigned a[ROW_TILES][4], b[4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) ldmatrix_x4(a[t], down<BLOCK_D>(q_tile, row + 16 * t, d, lane));
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; ++n) {
            ldmatrix_x4(b, across<BLOCK_D>(k_tile, 16 * n, d, lane));
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) multiply(s[t][2 * n], s[t][2 * n + 1], a[t], b);
        }
    }
}

// Scores from `limit` of their row on become -inf; `scale` is applied to all.
__device__ inline void mask(Scores& s, float scale, int start, int row, int keys, int shift, int lane) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int limit = min(keys, row + 16 * t + 8 * h + lane / 4 + shift + 1);
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = start + 8 * n + lane % 4 * 2 + e;
                    s[t][n][2 * h + e] = j < limit ? s[t][n][2 * h + e] * scale : -INFINITY;
                }
            }
        }
    }
}

// Scores become exp2(s * scale - m) under the new maxima m; sums and o so far are rescaled to them. scale >= 0.
__device__ inline void softmax(Scores& s, Output& o, Rows& m, Rows& l, float scale) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; ++n) top = fmaxf(top, fmaxf(s[t][n][2 * h], s[t][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(all_lanes, top, 1));
            top = fmaxf(top, __shfl_xor_sync(all_lanes, top, 2));
            const float m_new = fmaxf(m[t][h], top * scale);
            const float base = fabsf(m_new) == INFINITY ? 0.0f : m_new;  // inf - inf is NaN: such a row stays unshifted
            const float alpha = exp2f(m[t][h] - base);
            m[t][h] = m_new;
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; ++e) {
                    s[t][n][e] = exp2f(fmaf(s[t][n][e], scale, -base));
                    sum += s[t][n][e];
                }
            }
            l[t][h] = l[t][h] * alpha + sum;  // of this thread's columns; the four of a row are added at the end
#pragma unroll
            for (int n = 0; n < BLOCK_D / 8; ++n) o[t][n][2 * h] *= alpha, o[t][n][2 * h + 1] *= alpha;
        }
    }
}

__device__ inline void values(Output& o, const Scores& p, const ELEMENT* v_tile, int lane) {
#pragma unroll
    for (int j = 0; j < BLOCK_N / 16; ++j) {
        unsigned a[ROW_TILES][4], b[4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) to_a(a[t], p[t][2 * j], p[t][2 * j + 1]);
#pragma unroll
        for (int n = 0; n < BLOCK_D / 16; ++n) {
            ldmatrix_x4_trans(b, down<BLOCK_D>(v_tile, 16 * j, 16 * n, lane));
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) multiply(o[t][2 * n], o[t][2 * n + 1], a[t], b);
        }
    }
}

// (BLOCK_M, BLOCK_D) of `o` and `lse` start at query `row`, the warp's first.
__device__ inline void epilogue(
    ELEMENT* o, float* lse, const Output& acc, const Rows& m, const Rows& l, int row, int Sq, int dim, int lane) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = l[t][h];
            sum += __shfl_xor_sync(all_lanes, sum, 1);
            sum += __shfl_xor_sync(all_lanes, sum, 2);
            if (sum == 0.0f) sum = 1.0f;  // a row that sees nothing: zeros and m = -inf
            const int i = row + 16 * t + 8 * h + lane / 4;
            if (i >= Sq) continue;
            const float inverse = 1.0f / sum;
#pragma unroll
            for (int n = 0; n < BLOCK_D / 8; ++n) {
                const float* pair = &acc[t][n][2 * h];
                store_pair(o + (long long)i * dim, 8 * n + lane % 4 * 2, dim, pair[0] * inverse, pair[1] * inverse);
            }
            if (lane % 4 == 0) lse[i] = m[t][h] * 0.6931471805599453f + logf(sum);
        }
    }
}

// `scale` carries log2 e.
extern "C" __global__ __launch_bounds__(THREADS) void attention_tensorcore(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    ELEMENT* o, float* lse, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    extern __shared__ uint4 shared[];
    ELEMENT* q_tile = reinterpret_cast<ELEMENT*>(shared);
    ELEMENT* k_tile = q_tile + BLOCK_M * BLOCK_D;
    ELEMENT* v_tile = k_tile + BLOCK_N * BLOCK_D;
    const int tiles = (Sq + BLOCK_M - 1) / BLOCK_M, lane = threadIdx.x % 32;
    const long long pair = blockIdx.x / tiles;  // (batch, query head)
    const int top = (tiles - 1 - (int)(blockIdx.x % tiles)) * BLOCK_M;  // causal: those that see most keys start first
    const int row = threadIdx.x / 32 * 16 * ROW_TILES;                  // the warp's first query in the tile
    q += pair / Hq * q_batch + pair % Hq * q_head;
    k += pair / Hq * k_batch + pair % Hq / (Hq / Hkv) * k_head;
    v += pair / Hq * v_batch + pair % Hq / (Hq / Hkv) * v_head;
    // Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift is
    // so large that only Sk hides a key.
    const int shift = causal ? Sk - Sq : Sk;
    const int full = min(Sk, max(0, top + shift + 1)) / BLOCK_N * BLOCK_N;
    const int last = min(Sk, max(0, top + BLOCK_M + shift));
    const bool working = top + row < Sq;

    load_tile<BLOCK_M, BLOCK_D>(q_tile, q, q_row, q_col, top, Sq, dim);
    if (scale < 0.0f) {  // the maximum of s * scale is then that of -s * |scale|
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        unsigned* pairs = reinterpret_cast<unsigned*>(q_tile);
        for (int e = threadIdx.x; e < BLOCK_M * BLOCK_D / 2; e += THREADS) pairs[e] ^= 0x80008000u;
        scale = -scale;
    }
    load_tile<BLOCK_N, BLOCK_D>(k_tile, k, k_row, k_col, 0, Sk, dim);
    cp_async_commit();

    Output acc = {};
    Rows m, l = {};
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) m[t][0] = m[t][1] = -INFINITY;
    for (int start = 0; start < last; start += BLOCK_N) {
        Scores s;
        cp_async_wait<0>();
        __syncthreads();  // the keys are there, and the values of the tile before are used
        load_tile<BLOCK_N, BLOCK_D>(v_tile, v, v_row, v_col, start, Sk, dim);
        cp_async_commit();
        if (working) scores(s, q_tile, k_tile, row, lane);
        cp_async_wait<0>();
        __syncthreads();  // the values are there, and the keys are used
        if (start + BLOCK_N < last) load_tile<BLOCK_N, BLOCK_D>(k_tile, k, k_row, k_col, start + BLOCK_N, Sk, dim);
        cp_async_commit();
        if (!working) continue;
        if (start < full) {
            softmax(s, acc, m, l, scale);
        } else {
            mask(s, scale, start, top + row, Sk, shift, lane);
            softmax(s, acc, m, l, 1.0f);
        }
        values(acc, s, v_tile, lane);
    }
    cp_async_wait<0>();
    if (working) epilogue(o + pair * Sq * dim, lse + pair * Sq, acc, m, l, top + row, Sq, dim, lane);
}
