// Online softmax over tiles of 32 keys, for 64 queries per block; where PRUNED, only tiles that some query sees.
#include "attention_tiles.cuh"
#include "masks.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 32;

__device__ inline void rescale(float4 (&row)[BLOCK_D / 32], float factor) {
#pragma unroll
    for (float4& part : row) part.x *= factor, part.y *= factor, part.z *= factor, part.w *= factor;
}

extern "C" __global__ __launch_bounds__(THREADS) void masked_flash(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* bias, const float* slopes, const int* seg_q, const int* seg_k, const Mods mods,
    ELEMENT* o, float* lse, int kv_heads, int dim) {
    extern __shared__ float4 shared[];
    Row* q_tile = reinterpret_cast<Row*>(shared);
    Row* kv_tile = q_tile + BLOCK_M;  // keys, then their values
    float(*p_tile)[BLOCK_N + 1] = reinterpret_cast<float(*)[BLOCK_N + 1]>(kv_tile + BLOCK_N);
    const int Sq = mods.Sq, Sk = mods.Sk, tiles = (Sq + BLOCK_M - 1) / BLOCK_M;
    const long long pair = blockIdx.x / tiles, reader = pair % mods.heads / (mods.heads / kv_heads);
    const int top = blockIdx.x % tiles * BLOCK_M, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    q += pair / mods.heads * q_batch + pair % mods.heads * q_head;
    k += pair / mods.heads * k_batch + reader * k_head;
    v += pair / mods.heads * v_batch + reader * v_head;
    const Given given(bias, slopes, seg_q, seg_k, mods, pair);
    // The keys of the block's queries: from `first`, where a tile begins, to `last`.
    const int own = top + Sk - Sq, after = mods.causal ? 0 : mods.window - 1;
    const int first = PRUNED ? max(0, own - mods.window + 1) / BLOCK_N * BLOCK_N : 0;
    const int last = PRUNED ? min(Sk, max(0, own + BLOCK_M + after)) : Sk;
    const bool working = top + ty < Sq;
    load_tile<BLOCK_M>(q_tile, q, q_row, q_col, top, Sq, dim);
    float4 acc[4][BLOCK_D / 32] = {};
    float m[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, l[4] = {};
    for (int start = first; start < last; start += BLOCK_N) {
        __syncthreads();  // the values of the tile before are used
        load_tile<BLOCK_N>(kv_tile, k, k_row, k_col, start, Sk, dim);
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
                s[r][c] = i < Sq && j < Sk ? masked_score(s[r][c], given, mods, i, j).value : -INFINITY;
                m_new = fmaxf(m_new, s[r][c]);
            }
            for (int step = 4; step > 0; step /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(all_lanes, m_new, step));
            const float base = fabsf(m_new) == INFINITY ? 0.0f : m_new;  // inf - inf is NaN
            const float alpha = expf(m[r] - base);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float p = expf(s[r][c] - base);
                p_tile[ty + 16 * r][tx + 8 * c] = p > 0.0f ? after_dropout(p, mods, pair, i, start + tx + 8 * c) : p;
                sum += p;
            }
            for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
            l[r] = l[r] * alpha + sum;
            m[r] = m_new;
            rescale(acc[r], alpha);
        }
        __syncthreads();  // the keys are used
        load_tile<BLOCK_N>(kv_tile, v, v_row, v_col, start, Sk, dim);
        __syncthreads();
        if (working) accumulate(acc, p_tile, kv_tile, ty, tx, min(BLOCK_N, Sk - start));
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int i = top + ty + 16 * r;
        if (i >= Sq) continue;
        const float sum = l[r] == 0.0f ? 1.0f : l[r];  // a row that sees nothing: zeros and m = -inf
        store_row(o, pair * Sq + i, acc[r], 1.0f / sum, tx, dim);
        if (tx == 0) lse[pair * Sq + i] = m[r] + logf(sum);
    }
}
