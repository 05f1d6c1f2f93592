// dq, and dk with dv, from delta and lse * log2 e of a kernel before. Every tile is masked.
#include "../attention_backward/delta.cu"
#include "attention_tiles.cuh"
#include "masks.cuh"

constexpr int R = OWN / 16, C = STEP / 8;
using Scores = float[STEP + 1];

struct Gradients {
    float weight, ds;  // of v, and of the score; without the scale
};

// From the products of query i and key j, and of do and v.
__device__ inline Gradients gradients(
    float dot, float dp, float lse2, float delta, const Given& given, const Mods& mods, long long pair, int i, int j) {
    if (i >= mods.Sq || j >= mods.Sk) return {0.0f, 0.0f};
    const Score s = masked_score(dot, given, mods, i, j);
    const float p = exp2f(s.value * 1.4426950408889634f - lse2);
    if (p == 0.0f) return {0.0f, 0.0f};
    const float kept = after_dropout(1.0f, mods, pair, i, j);
    return {p * kept, p * s.slope * (kept * dp - delta)};
}

extern "C" __global__ __launch_bounds__(THREADS) void masked_dq(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    const float* delta, const float* lse2, const ELEMENT* bias, const float* slopes, const int* seg_q,
    const int* seg_k, const Mods mods, ELEMENT* dq, int kv_heads, int dim) {
    extern __shared__ float4 shared[];
    Row *q_tile = reinterpret_cast<Row*>(shared), *do_tile = q_tile + OWN, *k_tile = do_tile + OWN;
    Row* v_tile = k_tile + STEP;
    Scores* ds_tile = reinterpret_cast<Scores*>(v_tile + STEP);
    const int Sq = mods.Sq, Sk = mods.Sk, tiles = (Sq + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const long long pair = blockIdx.x / tiles, batch = pair / mods.heads, head = pair % mods.heads;
    const int top = blockIdx.x % tiles * OWN;
    k += batch * k_batch + head / (mods.heads / kv_heads) * k_head;
    v += batch * v_batch + head / (mods.heads / kv_heads) * v_head;
    const Given given(bias, slopes, seg_q, seg_k, mods, pair);

    load_tile<OWN>(q_tile, q + batch * q_batch + head * q_head, q_row, q_col, top, Sq, dim);
    load_tile<OWN>(do_tile, grad + batch * do_batch + head * do_head, do_row, do_col, top, Sq, dim);
    float4 acc[R][BLOCK_D / 32] = {};
    for (int start = 0; start < Sk; start += STEP) {
        __syncthreads();  // the tiles before are used
        load_tile<STEP>(k_tile, k, k_row, k_col, start, Sk, dim);
        load_tile<STEP>(v_tile, v, v_row, v_col, start, Sk, dim);
        __syncthreads();
        if (top + ty >= Sq) continue;
        float s[R][C], dp[R][C];
        multiply(s, q_tile, k_tile, ty, tx, dim);
        multiply(dp, do_tile, v_tile, ty, tx, dim);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int i = top + ty + 16 * r;
            const float delta_i = i < Sq ? delta[pair * Sq + i] : 0.0f, lse_i = i < Sq ? lse2[pair * Sq + i] : 0.0f;
#pragma unroll
            for (int c = 0; c < C; ++c) {
                const int j = start + tx + 8 * c;
                ds_tile[ty + 16 * r][tx + 8 * c] =
                    gradients(s[r][c], dp[r][c], lse_i, delta_i, given, mods, pair, i, j).ds;
            }
        }
        __syncwarp(lanes_of_row());
        accumulate(acc, ds_tile, k_tile, ty, tx, STEP);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int i = top + ty + 16 * r;
        if (i < Sq) store_row(dq, pair * Sq + i, acc[r], mods.scale, tx, dim);
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void masked_dkdv(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    const float* delta, const float* lse2, const ELEMENT* bias, const float* slopes, const int* seg_q,
    const int* seg_k, const Mods mods, ELEMENT* dk, ELEMENT* dv, int kv_heads, int dim) {
    extern __shared__ float4 shared[];
    Row *k_tile = reinterpret_cast<Row*>(shared), *v_tile = k_tile + OWN, *q_tile = v_tile + OWN;
    Row* do_tile = q_tile + STEP;
    Scores *p_tile = reinterpret_cast<Scores*>(do_tile + STEP), *ds_tile = p_tile + OWN;
    const int Sq = mods.Sq, Sk = mods.Sk, tiles = (Sk + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const long long pair_kv = blockIdx.x / tiles, batch = pair_kv / kv_heads, head_kv = pair_kv % kv_heads;
    const int left = blockIdx.x % tiles * OWN, group = mods.heads / kv_heads;

    load_tile<OWN>(k_tile, k + batch * k_batch + head_kv * k_head, k_row, k_col, left, Sk, dim);
    load_tile<OWN>(v_tile, v + batch * v_batch + head_kv * v_head, v_row, v_col, left, Sk, dim);
    float4 dk_acc[R][BLOCK_D / 32] = {}, dv_acc[R][BLOCK_D / 32] = {};
    for (long long head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        const long long pair = batch * mods.heads + head;
        const Given given(bias, slopes, seg_q, seg_k, mods, pair);
        for (int start = 0; start < Sq; start += STEP) {
            __syncthreads();  // the tiles before are used
            load_tile<STEP>(q_tile, q + batch * q_batch + head * q_head, q_row, q_col, start, Sq, dim);
            load_tile<STEP>(do_tile, grad + batch * do_batch + head * do_head, do_row, do_col, start, Sq, dim);
            __syncthreads();
            if (left + ty >= Sk) continue;
            float s[R][C], dp[R][C];  // transposed: a row is a key
            multiply(s, k_tile, q_tile, ty, tx, dim);
            multiply(dp, v_tile, do_tile, ty, tx, dim);
#pragma unroll
            for (int c = 0; c < C; ++c) {
                const int i = start + tx + 8 * c;
                const float delta_i = i < Sq ? delta[pair * Sq + i] : 0.0f, lse_i = i < Sq ? lse2[pair * Sq + i] : 0.0f;
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const int j = left + ty + 16 * r;
                    const Gradients of = gradients(s[r][c], dp[r][c], lse_i, delta_i, given, mods, pair, i, j);
                    p_tile[ty + 16 * r][tx + 8 * c] = of.weight;
                    ds_tile[ty + 16 * r][tx + 8 * c] = of.ds;
                }
            }
            __syncwarp(lanes_of_row());
            accumulate(dv_acc, p_tile, do_tile, ty, tx, STEP);
            accumulate(dk_acc, ds_tile, q_tile, ty, tx, STEP);
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int j = left + ty + 16 * r;
        if (j >= Sk) continue;
        store_row(dk, pair_kv * Sk + j, dk_acc[r], mods.scale, tx, dim);
        store_row(dv, pair_kv * Sk + j, dv_acc[r], 1.0f, tx, dim);
    }
}
