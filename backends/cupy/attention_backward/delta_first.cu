// dq, and dk with dv, from delta and lse * log2 e of a kernel before. Tiles that causality hides are not visited, tiles
// on its border alone are masked, and exp2 takes the scale with log2 e in it.
#include "attention_tiles.cuh"

constexpr int R = OWN / 16, C = STEP / 8;
using Scores = float[STEP + 1];

extern "C" __global__ __launch_bounds__(THREADS) void first_dq(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    const float* delta, const float* lse2,
    ELEMENT* dq, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, float scale2, int causal) {
    extern __shared__ float4 shared[];
    Row *q_tile = reinterpret_cast<Row*>(shared), *do_tile = q_tile + OWN, *k_tile = do_tile + OWN;
    Row* v_tile = k_tile + STEP;
    Scores* ds_tile = reinterpret_cast<Scores*>(v_tile + STEP);
    const int tiles = (Sq + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const long long pair = blockIdx.x / tiles, batch = pair / Hq, head = pair % Hq, head_kv = head / (Hq / Hkv);
    const int top = (tiles - 1 - (int)(blockIdx.x % tiles)) * OWN;  // causal: those that see most keys start first
    k += batch * k_batch + head_kv * k_head;
    v += batch * v_batch + head_kv * v_head;
    // Keys up to `full` are visible to all queries of the tile, from `last` on to none; without causality the shift is
    // so large that only Sk hides a key.
    const int shift = causal ? Sk - Sq : Sk;
    const int full = min(Sk, max(0, top + shift + 1)) / STEP * STEP;
    const int last = min(Sk, max(0, top + OWN + shift));

    load_tile<OWN>(q_tile, q + batch * q_batch + head * q_head, q_row, q_col, top, Sq, dim);
    load_tile<OWN>(do_tile, grad + batch * do_batch + head * do_head, do_row, do_col, top, Sq, dim);
    float delta_i[R], lse_i[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int i = top + ty + 16 * r;
        delta_i[r] = i < Sq ? delta[pair * Sq + i] : 0.0f;
        lse_i[r] = i < Sq ? lse2[pair * Sq + i] : INFINITY;
    }
    float4 acc[R][BLOCK_D / 32] = {};
    for (int start = 0; start < last; start += STEP) {
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
            const int row = ty + 16 * r, limit = min(Sk, top + row + shift + 1);
#pragma unroll
            for (int c = 0; c < C; ++c) {
                float p = exp2f(fmaf(s[r][c], scale2, -lse_i[r]));
                if (start >= full && start + tx + 8 * c >= limit) p = 0.0f;
                ds_tile[row][tx + 8 * c] = p * (dp[r][c] - delta_i[r]);
            }
        }
        __syncwarp(lanes_of_row());
        accumulate(acc, ds_tile, k_tile, ty, tx, STEP);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int i = top + ty + 16 * r;
        if (i < Sq) store_row(dq, pair * Sq + i, acc[r], scale, tx, dim);
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void first_dkdv(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    const float* delta, const float* lse2,
    ELEMENT* dk, ELEMENT* dv, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, float scale2, int causal) {
    extern __shared__ float4 shared[];
    Row *k_tile = reinterpret_cast<Row*>(shared), *v_tile = k_tile + OWN, *q_tile = v_tile + OWN;
    Row* do_tile = q_tile + STEP;
    Scores *p_tile = reinterpret_cast<Scores*>(do_tile + STEP), *ds_tile = p_tile + OWN;
    const int tiles = (Sk + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8, group = Hq / Hkv;
    const long long pair = blockIdx.x / tiles, batch = pair / Hkv, head_kv = pair % Hkv;
    const int left = blockIdx.x % tiles * OWN;
    // Queries before `first` see no key of the tile, from `full` on all of them.
    const int shift = causal ? Sk - Sq : Sk;
    const int first = max(0, left - shift) / STEP * STEP, full = max(0, left + OWN - 1 - shift);

    load_tile<OWN>(k_tile, k + batch * k_batch + head_kv * k_head, k_row, k_col, left, Sk, dim);
    load_tile<OWN>(v_tile, v + batch * v_batch + head_kv * v_head, v_row, v_col, left, Sk, dim);
    float4 dk_acc[R][BLOCK_D / 32] = {}, dv_acc[R][BLOCK_D / 32] = {};
    for (long long head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        const long long row_of_head = (batch * Hq + head) * Sq;
        for (int start = first; start < Sq; start += STEP) {
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
                const int col = tx + 8 * c, i = start + col;
                const float delta_i = i < Sq ? delta[row_of_head + i] : 0.0f;
                const float lse_i = i < Sq ? lse2[row_of_head + i] : INFINITY;
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const int row = ty + 16 * r;
                    float p = exp2f(fmaf(s[r][c], scale2, -lse_i));
                    if (i >= Sq || start < full && left + row > i + shift) p = 0.0f;  // or NaN, of 0 times -inf
                    p_tile[row][col] = p;
                    ds_tile[row][col] = p * (dp[r][c] - delta_i);
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
        store_row(dk, pair * Sk + j, dk_acc[r], scale, tx, dim);
        store_row(dv, pair * Sk + j, dv_acc[r], 1.0f, tx, dim);
    }
}
