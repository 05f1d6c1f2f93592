// A kernel for dq and one for dk and dv. Each forms delta = Σ do * o of the queries where it needs it.
// p = exp(s - lse); ds = p * (do . v - delta); dq = scale * ds * k; dk = scale * dsᵀ * q; dv = pᵀ * do.
#include "attention_tiles.cuh"

constexpr int R = OWN / 16, C = STEP / 8;
using Scores = float[STEP + 1];

// delta and lse of ROWS queries, one warp per row; lse is +inf, so that p is 0, for a query that sees nothing or is
// none.
template <int ROWS>
__device__ inline void load_statistics(
    float* delta_i, float* lse_i, const Row* do_tile, const ELEMENT* o, long long o_row, long long o_col,
    const float* lse, long long lse_row, int first, int end, int dim) {
    for (int r = threadIdx.x / 32; r < ROWS; r += THREADS / 32) {
        const long long i = first + r;
        float sum = 0.0f;
        if (i < end) {
            for (int d = threadIdx.x % 32; d < dim; d += 32) sum += do_tile[r][d] * to_float(o[i * o_row + d * o_col]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) {
            const float value = i < end ? lse[i * lse_row] : INFINITY;
            delta_i[r] = sum;
            lse_i[r] = value == -INFINITY ? INFINITY : value;
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void inline_dq(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* o, long long o_batch, long long o_head, long long o_row, long long o_col,
    const float* lse, long long lse_batch, long long lse_head, long long lse_row,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    ELEMENT* dq, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    extern __shared__ float4 shared[];
    Row *q_tile = reinterpret_cast<Row*>(shared), *do_tile = q_tile + OWN, *k_tile = do_tile + OWN;
    Row* v_tile = k_tile + STEP;
    Scores* ds_tile = reinterpret_cast<Scores*>(v_tile + STEP);
    __shared__ float delta_i[OWN];
    __shared__ float lse_i[OWN];
    const int tiles = (Sq + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const long long pair = blockIdx.x / tiles, batch = pair / Hq, head = pair % Hq, head_kv = head / (Hq / Hkv);
    const int top = blockIdx.x % tiles * OWN;
    k += batch * k_batch + head_kv * k_head;
    v += batch * v_batch + head_kv * v_head;

    load_tile<OWN>(q_tile, q + batch * q_batch + head * q_head, q_row, q_col, top, Sq, dim);
    load_tile<OWN>(do_tile, grad + batch * do_batch + head * do_head, do_row, do_col, top, Sq, dim);
    __syncthreads();
    load_statistics<OWN>(
        delta_i, lse_i, do_tile, o + batch * o_batch + head * o_head, o_row, o_col,
        lse + batch * lse_batch + head * lse_head, lse_row, top, Sq, dim);
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
#pragma unroll
            for (int c = 0; c < C; ++c) {
                const int row = ty + 16 * r, j = start + tx + 8 * c;
                const bool visible = j < Sk && (!causal || j <= top + row + (Sk - Sq));
                const float p = visible ? expf(s[r][c] * scale - lse_i[row]) : 0.0f;
                ds_tile[row][tx + 8 * c] = p * (dp[r][c] - delta_i[row]);
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

extern "C" __global__ __launch_bounds__(THREADS) void inline_dkdv(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* o, long long o_batch, long long o_head, long long o_row, long long o_col,
    const float* lse, long long lse_batch, long long lse_head, long long lse_row,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    ELEMENT* dk, ELEMENT* dv, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    extern __shared__ float4 shared[];
    Row *k_tile = reinterpret_cast<Row*>(shared), *v_tile = k_tile + OWN, *q_tile = v_tile + OWN;
    Row* do_tile = q_tile + STEP;
    Scores *p_tile = reinterpret_cast<Scores*>(do_tile + STEP), *ds_tile = p_tile + OWN;
    __shared__ float delta_i[STEP];
    __shared__ float lse_i[STEP];
    const int tiles = (Sk + OWN - 1) / OWN, ty = threadIdx.x / 8, tx = threadIdx.x % 8, group = Hq / Hkv;
    const long long pair = blockIdx.x / tiles, batch = pair / Hkv, head_kv = pair % Hkv;
    const int left = blockIdx.x % tiles * OWN;

    load_tile<OWN>(k_tile, k + batch * k_batch + head_kv * k_head, k_row, k_col, left, Sk, dim);
    load_tile<OWN>(v_tile, v + batch * v_batch + head_kv * v_head, v_row, v_col, left, Sk, dim);
    float4 dk_acc[R][BLOCK_D / 32] = {}, dv_acc[R][BLOCK_D / 32] = {};
    for (long long head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int start = 0; start < Sq; start += STEP) {
            __syncthreads();  // the tiles before are used
            load_tile<STEP>(q_tile, q + batch * q_batch + head * q_head, q_row, q_col, start, Sq, dim);
            load_tile<STEP>(do_tile, grad + batch * do_batch + head * do_head, do_row, do_col, start, Sq, dim);
            __syncthreads();
            load_statistics<STEP>(
                delta_i, lse_i, do_tile, o + batch * o_batch + head * o_head, o_row, o_col,
                lse + batch * lse_batch + head * lse_head, lse_row, start, Sq, dim);
            __syncthreads();
            if (left + ty >= Sk) continue;
            float s[R][C], dp[R][C];  // transposed: a row is a key
            multiply(s, k_tile, q_tile, ty, tx, dim);
            multiply(dp, v_tile, do_tile, ty, tx, dim);
#pragma unroll
            for (int r = 0; r < R; ++r) {
#pragma unroll
                for (int c = 0; c < C; ++c) {
                    const int row = ty + 16 * r, col = tx + 8 * c;
                    // also for no query: 0 times a key's -inf would be NaN
                    const bool visible = start + col < Sq && (!causal || left + row <= start + col + (Sk - Sq));
                    const float p = visible ? expf(s[r][c] * scale - lse_i[col]) : 0.0f;
                    p_tile[row][col] = p;
                    ds_tile[row][col] = p * (dp[r][c] - delta_i[col]);
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
