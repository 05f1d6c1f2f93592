// One tile of queries of a sequence among others: online softmax over tiles of 32 keys.
#pragma once
#include "attention_tiles.cuh"
#include "sequences.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 32;

// Elements of (T, heads, D) with any strides.
struct Packed {
    const ELEMENT* first;
    long long t, h, d;
};

// o and lse of the queries from `top` on, of one sequence and head.
__device__ inline void attend(
    Packed q, Packed k, Packed v, ELEMENT* o, float* lse, Sequence of, int top, long long head, int Tq, int Hq, int Hkv,
    int dim, float scale, int causal) {
    extern __shared__ float4 shared[];
    Row* q_tile = reinterpret_cast<Row*>(shared);
    Row* kv_tile = q_tile + BLOCK_M;  // keys, then their values
    float(*p_tile)[BLOCK_N + 1] = reinterpret_cast<float(*)[BLOCK_N + 1]>(kv_tile + BLOCK_N);
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8, seq_q = of.seq_q, seq_k = of.seq_k;
    const ELEMENT* queries = q.first + of.first_q * q.t + head * q.h;
    const ELEMENT* keys = k.first + of.first_k * k.t + head / (Hq / Hkv) * k.h;
    const ELEMENT* values = v.first + of.first_k * v.t + head / (Hq / Hkv) * v.h;
    const int last = causal ? min(seq_k, max(0, top + BLOCK_M + (seq_k - seq_q))) : seq_k;
    const bool working = top + ty < seq_q;

    load_tile<BLOCK_M>(q_tile, queries, q.t, q.d, top, seq_q, dim);
    float4 acc[4][BLOCK_D / 32] = {};
    float m[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, l[4] = {};
    for (int start = 0; start < last; start += BLOCK_N) {
        __syncthreads();  // the values of the tile before are used
        load_tile<BLOCK_N>(kv_tile, keys, k.t, k.d, start, seq_k, dim);
        __syncthreads();
        float s[4][4] = {};
        if (working) multiply(s, q_tile, kv_tile, ty, tx, dim);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = top + ty + 16 * r;
            float m_new = m[r], sum = 0.0f;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int j = start + tx + 8 * c;
                s[r][c] = j < seq_k && (!causal || j <= i + (seq_k - seq_q)) ? s[r][c] * scale : -INFINITY;
                m_new = fmaxf(m_new, s[r][c]);
            }
            for (int step = 4; step > 0; step /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(all_lanes, m_new, step));
            const float base = fabsf(m_new) == INFINITY ? 0.0f : m_new;  // inf - inf is NaN
            const float alpha = expf(m[r] - base);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float p = expf(s[r][c] - base);
                p_tile[ty + 16 * r][tx + 8 * c] = p;
                sum += p;
            }
            for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
            l[r] = l[r] * alpha + sum;
            m[r] = m_new;
#pragma unroll
            for (int c = 0; c < BLOCK_D / 32; ++c) {
                acc[r][c].x *= alpha, acc[r][c].y *= alpha, acc[r][c].z *= alpha, acc[r][c].w *= alpha;
            }
        }
        __syncthreads();  // the keys are used
        load_tile<BLOCK_N>(kv_tile, values, v.t, v.d, start, seq_k, dim);
        __syncthreads();
        if (working) accumulate(acc, p_tile, kv_tile, ty, tx, min(BLOCK_N, seq_k - start));
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int i = top + ty + 16 * r;
        if (i >= seq_q) continue;
        const long long row = of.first_q + i;
        const float sum = l[r] == 0.0f ? 1.0f : l[r];  // a row that sees nothing: zeros and m = -inf
        store_row(o, row * Hq + head, acc[r], 1.0f / sum, tx, dim);
        if (tx == 0) lse[head * Tq + row] = m[r] + logf(sum);
    }
}
