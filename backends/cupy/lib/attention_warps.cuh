// A warp's rows in attention on tensor cores: 16 * ROW_TILES queries, whose scores with BLOCK_N keys and whose o of
// BLOCK_V columns stay in its registers. Scores in the layout of a product's result are the left operand of the next.
#pragma once
#include "attention_mma.cuh"
#ifndef BLOCK_V
#define BLOCK_V BLOCK_D
#endif

constexpr float LN_2 = 0.6931471805599453f;

using Scores = float[ROW_TILES][BLOCK_N / 8][4];
using Output = float[ROW_TILES][BLOCK_V / 8][4];
using Rows = float[ROW_TILES][2];  // rows group and group + 8 of each 16

__device__ inline void clear(Scores& s) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int n = 0; n < BLOCK_N / 8; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) s[t][n][e] = 0.0f;
        }
    }
}

// s += the warp's rows of a tile, from `row` on, times the keys of a tile, WIDTH columns each.
template <int WIDTH>
__device__ inline void scores(Scores& s, const ELEMENT* q_tile, const ELEMENT* k_tile, int row, int lane) {
#pragma unroll
    for (int d = 0; d < WIDTH; d += 16) {
        unsigned a[ROW_TILES][4], b[4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) ldmatrix_x4(a[t], down<WIDTH>(q_tile, row + 16 * t, d, lane));
#pragma unroll
        for (int n = 0; n < BLOCK_N / 16; ++n) {
            ldmatrix_x4(b, across<WIDTH>(k_tile, 16 * n, d, lane));
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) multiply(s[t][2 * n], s[t][2 * n + 1], a[t], b);
        }
    }
}

// Scores become `scale` times what they were, from `limit_of` its row of the warp's on -inf.
template <typename Limit>
__device__ inline void mask(Scores& s, float scale, int start, int lane, const Limit& limit_of) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int limit = limit_of(16 * t + 8 * h + lane / 4);
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
            for (int n = 0; n < BLOCK_V / 8; ++n) o[t][n][2 * h] *= alpha, o[t][n][2 * h + 1] *= alpha;
        }
    }
}

// o += p times the values of a tile of rows of BLOCK_D, from column `first` on.
__device__ inline void values(Output& o, const Scores& p, const ELEMENT* v_tile, int lane, int first = 0) {
#pragma unroll
    for (int j = 0; j < BLOCK_N / 16; ++j) {
        unsigned a[ROW_TILES][4], b[4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) to_a(a[t], p[t][2 * j], p[t][2 * j + 1]);
#pragma unroll
        for (int n = 0; n < BLOCK_V / 16; ++n) {
            ldmatrix_x4_trans(b, down<BLOCK_D>(v_tile, 16 * j, first + 16 * n, lane));
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) multiply(o[t][2 * n], o[t][2 * n + 1], a[t], b);
        }
    }
}

// What the four threads of a row have added up.
__device__ inline float total(float sum) {
    sum += __shfl_xor_sync(all_lanes, sum, 1);
    return sum + __shfl_xor_sync(all_lanes, sum, 2);
}

// The warp's rows, of which the first is `row` of `end`, `o_row` elements apart in `o`, to `o` and `lse`.
__device__ inline void epilogue(
    ELEMENT* o, long long o_row, float* lse, const Output& acc, const Rows& m, const Rows& l, int row, int end, int dim,
    int lane) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = total(l[t][h]);
            if (sum == 0.0f) sum = 1.0f;  // a row that sees nothing: zeros and m = -inf
            const int i = row + 16 * t + 8 * h + lane / 4;
            if (i >= end) continue;
            const float inverse = 1.0f / sum;
#pragma unroll
            for (int n = 0; n < BLOCK_V / 8; ++n) {
                const float* pair = &acc[t][n][2 * h];
                store_pair(o + i * o_row, 8 * n + lane % 4 * 2, dim, pair[0] * inverse, pair[1] * inverse);
            }
            if (lane % 4 == 0) lse[i] = m[t][h] * LN_2 + logf(sum);
        }
    }
}
