// dq, and dk with dv, from delta and lse * log2 e of a kernel before. A block owns a tile of one sequence's rows; tiles
// that causality hides are not visited, and exp2 takes the scale with log2 e in it. Rows that belong to no sequence have
// nobody on the other side: zeros.
#include "attention_tiles.cuh"

constexpr int R = OWN / 16, C = STEP / 8;
using Scores = float[STEP + 1];

// First rows and lengths of a sequence on the side that owns tiles and on the other; sequence `number` is the rows
// behind the last one.
struct Sequence {
    long long first, first_other;
    int length, length_other;

    __device__ Sequence(
        const int* cu, long long stride, const int* cu_other, long long stride_other, long long b, int number,
        int total) {
        first = cu[b * stride];
        first_other = cu_other[b * stride_other];
        length = (b < number ? cu[(b + 1) * stride] : total) - (int)first;
        length_other = b < number ? cu_other[(b + 1) * stride_other] - (int)first_other : 0;
    }
};

extern "C" __global__ __launch_bounds__(THREADS) void varlen_dq(
    const ELEMENT* q, long long q_row, long long q_head, long long q_col,
    const ELEMENT* k, long long k_row, long long k_head, long long k_col,
    const ELEMENT* v, long long v_row, long long v_head, long long v_col,
    const ELEMENT* grad, long long do_row, long long do_head, long long do_col,
    const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride,
    const float* delta, const float* lse2,
    ELEMENT* dq, int B, int Tq, int Hq, int Hkv, int dim, int tiles, float scale, float scale2, int causal) {
    extern __shared__ float4 shared[];
    Row *q_tile = reinterpret_cast<Row*>(shared), *do_tile = q_tile + OWN, *k_tile = do_tile + OWN;
    Row* v_tile = k_tile + STEP;
    Scores* ds_tile = reinterpret_cast<Scores*>(v_tile + STEP);
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    const long long pair = blockIdx.x / tiles, head = pair % Hq, head_kv = head / (Hq / Hkv);
    const Sequence of(cu_q, cu_q_stride, cu_k, cu_k_stride, pair / Hq, B, Tq);
    const int seq_q = of.length, seq_k = of.length_other, shift = causal ? seq_k - seq_q : seq_k;
    q += of.first * q_row + head * q_head;
    grad += of.first * do_row + head * do_head;
    k += of.first_other * k_row + head_kv * k_head;
    v += of.first_other * v_row + head_kv * v_head;

    // Only the rows of no sequence may be more than there are tiles for: one round is all that a sequence has.
    for (int top = blockIdx.x % tiles * OWN; top < seq_q; top += tiles * OWN) {
        const int last = min(seq_k, max(0, top + OWN + shift));
        __syncthreads();  // the tiles of the round before are used
        load_tile<OWN>(q_tile, q, q_row, q_col, top, seq_q, dim);
        load_tile<OWN>(do_tile, grad, do_row, do_col, top, seq_q, dim);
        float delta_i[R], lse_i[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int i = top + ty + 16 * r;
            delta_i[r] = i < seq_q ? delta[head * Tq + of.first + i] : 0.0f;
            lse_i[r] = i < seq_q ? lse2[head * Tq + of.first + i] : INFINITY;
        }
        float4 acc[R][BLOCK_D / 32] = {};
        for (int start = 0; start < last; start += STEP) {
            __syncthreads();  // the tiles before are used
            load_tile<STEP>(k_tile, k, k_row, k_col, start, seq_k, dim);
            load_tile<STEP>(v_tile, v, v_row, v_col, start, seq_k, dim);
            __syncthreads();
            if (top + ty >= seq_q) continue;
            float s[R][C], dp[R][C];
            multiply(s, q_tile, k_tile, ty, tx, dim);
            multiply(dp, do_tile, v_tile, ty, tx, dim);
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const int row = ty + 16 * r, limit = min(seq_k, top + row + shift + 1);
#pragma unroll
                for (int c = 0; c < C; ++c) {
                    const float p = exp2f(fmaf(s[r][c], scale2, -lse_i[r]));
                    const bool visible = start + tx + 8 * c < limit;
                    ds_tile[row][tx + 8 * c] = visible ? p * (dp[r][c] - delta_i[r]) : 0.0f;
                }
            }
            __syncwarp(lanes_of_row());
            accumulate(acc, ds_tile, k_tile, ty, tx, STEP);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int i = top + ty + 16 * r;
            if (i < seq_q) store_row(dq, (of.first + i) * Hq + head, acc[r], scale, tx, dim);
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void varlen_dkdv(
    const ELEMENT* q, long long q_row, long long q_head, long long q_col,
    const ELEMENT* k, long long k_row, long long k_head, long long k_col,
    const ELEMENT* v, long long v_row, long long v_head, long long v_col,
    const ELEMENT* grad, long long do_row, long long do_head, long long do_col,
    const int* cu_q, long long cu_q_stride, const int* cu_k, long long cu_k_stride,
    const float* delta, const float* lse2,
    ELEMENT* dk, ELEMENT* dv, int B, int Tq, int Tk, int Hq, int Hkv, int dim, int tiles, float scale, float scale2,
    int causal) {
    extern __shared__ float4 shared[];
    Row *k_tile = reinterpret_cast<Row*>(shared), *v_tile = k_tile + OWN, *q_tile = v_tile + OWN;
    Row* do_tile = q_tile + STEP;
    Scores *p_tile = reinterpret_cast<Scores*>(do_tile + STEP), *ds_tile = p_tile + OWN;
    const int ty = threadIdx.x / 8, tx = threadIdx.x % 8, group = Hq / Hkv;
    const long long pair = blockIdx.x / tiles, head_kv = pair % Hkv;
    const Sequence of(cu_k, cu_k_stride, cu_q, cu_q_stride, pair / Hkv, B, Tk);
    const int seq_k = of.length, seq_q = of.length_other, shift = causal ? seq_k - seq_q : seq_k;

    for (int left = blockIdx.x % tiles * OWN; left < seq_k; left += tiles * OWN) {
        const int first = max(0, left - shift) / STEP * STEP;  // queries before see no key of the tile
        __syncthreads();  // the tiles of the round before are used
        load_tile<OWN>(k_tile, k + of.first * k_row + head_kv * k_head, k_row, k_col, left, seq_k, dim);
        load_tile<OWN>(v_tile, v + of.first * v_row + head_kv * v_head, v_row, v_col, left, seq_k, dim);
        float4 dk_acc[R][BLOCK_D / 32] = {}, dv_acc[R][BLOCK_D / 32] = {};
        for (long long head = head_kv * group; head < (head_kv + 1) * group; ++head) {
            const ELEMENT *q_rows = q + of.first_other * q_row + head * q_head;
            const ELEMENT *do_rows = grad + of.first_other * do_row + head * do_head;
            const long long row_of_head = head * Tq + of.first_other;
            for (int start = first; start < seq_q; start += STEP) {
                __syncthreads();  // the tiles before are used
                load_tile<STEP>(q_tile, q_rows, q_row, q_col, start, seq_q, dim);
                load_tile<STEP>(do_tile, do_rows, do_row, do_col, start, seq_q, dim);
                __syncthreads();
                if (left + ty >= seq_k) continue;
                float s[R][C], dp[R][C];  // transposed: a row is a key
                multiply(s, k_tile, q_tile, ty, tx, dim);
                multiply(dp, v_tile, do_tile, ty, tx, dim);
#pragma unroll
                for (int c = 0; c < C; ++c) {
                    const int col = tx + 8 * c, i = start + col;
                    const float delta_i = i < seq_q ? delta[row_of_head + i] : 0.0f;
                    const float lse_i = i < seq_q ? lse2[row_of_head + i] : INFINITY;
#pragma unroll
                    for (int r = 0; r < R; ++r) {
                        const int row = ty + 16 * r;
                        const bool visible = i < seq_q && left + row <= i + shift;
                        const float p = visible ? exp2f(fmaf(s[r][c], scale2, -lse_i)) : 0.0f;
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
            if (j >= seq_k) continue;
            store_row(dk, (of.first + j) * Hkv + head_kv, dk_acc[r], scale, tx, dim);
            store_row(dv, (of.first + j) * Hkv + head_kv, dv_acc[r], 1.0f, tx, dim);
        }
    }
}
