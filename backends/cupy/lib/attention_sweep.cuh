// What a block does in attention on tensor cores: BLOCK_M queries of a head sweep over its keys. Keys and values arrive
// by turns: values while the scores are formed, the next keys while the values are used.
#pragma once
#ifndef BLOCK_R
#define BLOCK_R 0
#endif
constexpr int THREADS = 32 * WARPS, BLOCK_M = 16 * ROW_TILES * WARPS;
#include "attention_warps.cuh"

// Rows of one head, of `dim` columns, with any strides.
struct Tokens {
    const ELEMENT* first;
    long long row, col;
    int dim;

    template <int ROWS, int WIDTH> __device__ void load(ELEMENT* tile, int top, int end) const {
        load_tile<ROWS, WIDTH>(tile, first, row, col, top, end, dim);
    }
};

// Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift is so
// large that only Sk hides a key. `scale` carries log2 e.
struct Causal {
    float scale;
    int Sk, shift, full, first, last;

    __device__ Causal(float scale, int causal, int top, int Sq, int Sk) : scale(scale), Sk(Sk), first(0) {
        shift = causal ? Sk - Sq : Sk;
        full = min(Sk, max(0, top + shift + 1)) / BLOCK_N * BLOCK_N;
        last = min(Sk, max(0, top + BLOCK_M + shift));
    }

    // The tile of keys after the one from `start` on that some query sees, or `last` and more.
    __device__ int next(int start) const { return start + BLOCK_N; }

    // Whether all that the scores of these keys lack is a factor that is not negative, `scale`.
    __device__ bool whole(int start) const { return start < full && scale >= 0.0f; }

    // Scales and masks the scores of the warp's queries, the first of which is `row`.
    __device__ void edit(Scores& s, int start, int row, int lane) const {
        mask(s, scale, start, lane, [&](int i) { return min(Sk, row + i + shift + 1); });
    }

    __device__ void edit_weights(Scores&, int, int, int) const {}
};

// o and lse of the queries from `top` on, over the keys of `rule`; `o_row` is what parts their rows in o. Of BLOCK_R
// columns more are r and t, another part of queries and keys.
template <typename Rule>
__device__ inline void sweep(
    const Tokens& q, const Tokens& k, const Tokens& v, ELEMENT* o, long long o_row, float* lse, int top, int Sq, int Sk,
    const Rule& rule, const Tokens& r = {}, const Tokens& t = {}) {
    extern __shared__ uint4 shared[];
    ELEMENT* q_tile = reinterpret_cast<ELEMENT*>(shared);
    ELEMENT* k_tile = q_tile + BLOCK_M * BLOCK_D;
    ELEMENT* v_tile = k_tile + BLOCK_N * BLOCK_D;
    ELEMENT* r_tile = v_tile + BLOCK_N * BLOCK_D;
    ELEMENT* t_tile = r_tile + BLOCK_M * BLOCK_R;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * ROW_TILES;  // the warp's first query in the tile
    const bool working = top + row < Sq;
    q.load<BLOCK_M, BLOCK_D>(q_tile, top, Sq);
    k.load<BLOCK_N, BLOCK_D>(k_tile, rule.first, Sk);
    if constexpr (BLOCK_R > 0) {
        r.load<BLOCK_M, BLOCK_R>(r_tile, top, Sq);
        t.load<BLOCK_N, BLOCK_R>(t_tile, rule.first, Sk);
    }
    cp_async_commit();

    Output acc = {};
    Rows m, l = {};
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) m[i][0] = m[i][1] = -INFINITY;
    for (int start = rule.first, next; start < rule.last; start = next) {
        Scores s;
        cp_async_wait<0>();
        __syncthreads();  // the keys are there, and the values of the tile before are used
        v.load<BLOCK_N, BLOCK_D>(v_tile, start, Sk);
        cp_async_commit();
        clear(s);
        if (working) {
            scores<BLOCK_D>(s, q_tile, k_tile, row, lane);
            if constexpr (BLOCK_R > 0) scores<BLOCK_R>(s, r_tile, t_tile, row, lane);
        }
        cp_async_wait<0>();
        __syncthreads();  // the values are there, and the keys are used
        next = rule.next(start);
        if (next < rule.last) {
            k.load<BLOCK_N, BLOCK_D>(k_tile, next, Sk);
            if constexpr (BLOCK_R > 0) t.load<BLOCK_N, BLOCK_R>(t_tile, next, Sk);
        }
        cp_async_commit();
        if (!working) continue;
        if (rule.whole(start)) {
            softmax(s, acc, m, l, rule.scale);
        } else {
            rule.edit(s, start, top + row, lane);
            softmax(s, acc, m, l, 1.0f);
        }
        rule.edit_weights(s, start, top + row, lane);
        values(acc, s, v_tile, lane);
    }
    cp_async_wait<0>();
    if (working) epilogue(o, o_row, lse, acc, m, l, top + row, Sq, v.dim, lane);
}
