// dk and dv stay in registers and dq is added up in memory. A block owns BLOCK_N keys and walks over the queries that
// see them, the next tile of q and do arriving while this one is used. Scores are formed transposed, 16 keys per warp:
// in the layout of a product's result pᵀ and dsᵀ are the left operands of dv = pᵀ * do and dk = dsᵀ * q. Only dq = ds *
// k, a sum over all warps' keys, takes ds through shared memory. COL_PARTS warps share 16 keys, each with its columns
// of dk and dv.
constexpr int WARPS = BLOCK_N / 16 * COL_PARTS, THREADS = 32 * WARPS;
#include "attention_mma.cuh"

constexpr int OWN_COLS = BLOCK_D / COL_PARTS;                // of dk and dv, a warp
constexpr int DQ_COLS = BLOCK_D / (WARPS / (BLOCK_M / 16));  // of the 16 rows of dq that a warp forms
using Scores = float[BLOCK_M / 8][4];                        // 16 keys, BLOCK_M queries
using Gradient = float[OWN_COLS / 8][4];

// Transposed products of 16 rows of `own` with the BLOCK_M rows of `step`.
__device__ inline void scores(Scores& s, const ELEMENT* own, const ELEMENT* step, int row, int lane) {
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < BLOCK_D; d += 16) {
        unsigned a[4], b[4];
        ldmatrix_x4(a, down<BLOCK_D>(own, row, d, lane));
#pragma unroll
        for (int n = 0; n < BLOCK_M / 16; ++n) {
            ldmatrix_x4(b, across<BLOCK_D>(step, 16 * n, d, lane));
            multiply(s[2 * n], s[2 * n + 1], a, b);
        }
    }
}

// s becomes p = exp2(s * scale - lse); where `masked`, 0 for queries before `first_seen`, the first to see this lane's
// first key (one more a key), for those from `end` on, and for keys past the `keys_left` from that key on.
__device__ inline void probabilities(
    Scores& s, const float* lse, float scale, bool masked, int start, int first_seen, int end, int keys_left,
    int lane) {
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
        const int i = 8 * n + lane % 4 * 2;
        const float2 shift = *reinterpret_cast<const float2*>(lse + i);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            s[n][e] = exp2f(fmaf(s[n][e], scale, -(e % 2 ? shift.y : shift.x)));
            const int query = start + i + e % 2, key = 8 * (e / 2);
            if (masked && (key >= keys_left || query < first_seen + key || query >= end)) s[n][e] = 0.0f;
        }
    }
}

// gradient (16 keys, OWN_COLS) += weights (16 keys, BLOCK_M) * rows (BLOCK_M, columns from `col` on).
__device__ inline void accumulate(
    Gradient& gradient, const unsigned (&weights)[BLOCK_M / 16][4], const ELEMENT* rows, int col, int lane) {
#pragma unroll
    for (int m = 0; m < BLOCK_M / 16; ++m) {
#pragma unroll
        for (int n = 0; n < OWN_COLS / 16; ++n) {
            unsigned b[4];
            ldmatrix_x4_trans(b, down<BLOCK_D>(rows, 16 * m, col + 16 * n, lane));
            multiply(gradient[2 * n], gradient[2 * n + 1], weights[m], b);
        }
    }
}

// Adds 16 rows and DQ_COLS columns of ds * k over the first `keys` keys to dq (rows, dim), `rows` of which exist.
__device__ inline void add_dq(
    float* dq, const ELEMENT* ds_tile, const ELEMENT* k_tile, int row, int col, int keys, int rows, int dim, int lane) {
    float acc[DQ_COLS / 8][4] = {};
#pragma unroll 2
    for (int j = 0; j < keys; j += 16) {
        unsigned a[4], b[4];
        ldmatrix_x4_trans(a, across<BLOCK_M>(ds_tile, j, row, lane));
#pragma unroll
        for (int n = 0; n < DQ_COLS / 16; ++n) {
            ldmatrix_x4_trans(b, down<BLOCK_D>(k_tile, j, col + 16 * n, lane));
            multiply(acc[2 * n], acc[2 * n + 1], a, b);
        }
    }
#pragma unroll
    for (int n = 0; n < DQ_COLS / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int i = row + lane / 4 + 8 * (e / 2), d = col + 8 * n + lane % 4 * 2 + e % 2;
            if (i < rows && d < dim) atomicAdd(dq + (long long)i * dim + d, acc[n][e]);
        }
    }
}

// BLOCK_M rows of q, do, lse and delta from query `start` on. lse is +inf, so that p is 0, for queries past the end.
__device__ inline void load_queries(
    ELEMENT* q_tile, ELEMENT* do_tile, float* statistics, const ELEMENT* q, long long q_row, long long q_col,
    const ELEMENT* grad, long long do_row, long long do_col, const float* delta, const float* lse2,
    int start, int Sq, int dim) {
    load_tile<BLOCK_M, BLOCK_D>(q_tile, q, q_row, q_col, start, Sq, dim);
    load_tile<BLOCK_M, BLOCK_D>(do_tile, grad, do_row, do_col, start, Sq, dim);
    cp_async_commit();
    for (int i = threadIdx.x; i < BLOCK_M; i += THREADS) {
        statistics[i] = start + i < Sq ? lse2[start + i] : INFINITY;
        statistics[BLOCK_M + i] = start + i < Sq ? delta[start + i] : 0.0f;
    }
}

// ds = p * (dp - delta), in place of dp: rows are keys, columns the queries whose delta is given.
__device__ inline void score_gradients(Scores& ds, const Scores& p, const float* delta, int lane) {
#pragma unroll
    for (int n = 0; n < BLOCK_M / 8; ++n) {
        const float2 delta_n = *reinterpret_cast<const float2*>(delta + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[n][e] = p[n][e] * (ds[n][e] - (e % 2 ? delta_n.y : delta_n.x));
    }
}

// This warp's rounded ds, from row `key` of this thread on, to shared memory.
__device__ inline void store_ds(ELEMENT* ds_tile, const unsigned (&weights)[BLOCK_M / 16][4], int key, int lane) {
#pragma unroll
    for (int m = 0; m < BLOCK_M / 16; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int at = place<BLOCK_M>(key + e % 2 * 8, 16 * m + e / 2 * 8 + lane % 4 * 2);
            *reinterpret_cast<unsigned*>(ds_tile + at) = weights[m][e];
        }
    }
}

// This thread's rows of dk and dv, both from the tile's first row and column `col` on.
__device__ inline void store_gradients(
    ELEMENT* dk, ELEMENT* dv, const Gradient& dk_acc, const Gradient& dv_acc, float scale, int row, int col, int keys,
    int dim, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int j = row + lane / 4 + 8 * h;
        if (j >= keys) continue;
        const long long at = (long long)j * dim;
#pragma unroll
        for (int n = 0; n < OWN_COLS / 8; ++n) {
            const int d = col + 8 * n + lane % 4 * 2;
            store_pair(dk + at, d, dim, dk_acc[n][2 * h] * scale, dk_acc[n][2 * h + 1] * scale);
            store_pair(dv + at, d, dim, dv_acc[n][2 * h], dv_acc[n][2 * h + 1]);
        }
    }
}

// dk and dv; dq / scale is added to `dq` (batch, Hq, Sq, dim), which holds zeros. `scale2` is scale * log2 e.
// Longer than a screen: what is left is the order of copies, barriers and products, and a function for a step of the
// loop would take more than 30 of the names above it.
extern "C" __global__ __launch_bounds__(THREADS) void attention_backward_tensorcore(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    const float* delta, const float* lse2, float* dq, ELEMENT* dk, ELEMENT* dv,
    int Hq, int Hkv, int Sq, int Sk, int dim, float scale, float scale2, int causal) {
    extern __shared__ uint4 shared[];
    ELEMENT* k_tile = reinterpret_cast<ELEMENT*>(shared);
    ELEMENT* v_tile = k_tile + BLOCK_N * BLOCK_D;
    ELEMENT* q_tiles = v_tile + BLOCK_N * BLOCK_D;        // two stages
    ELEMENT* do_tiles = q_tiles + 2 * BLOCK_M * BLOCK_D;  // two stages
    ELEMENT* ds_tile = do_tiles + 2 * BLOCK_M * BLOCK_D;  // (BLOCK_N, BLOCK_M): transposed
    float* statistics = reinterpret_cast<float*>(ds_tile + BLOCK_N * BLOCK_M);  // two stages of lse and delta
    const int tiles = (Sk + BLOCK_N - 1) / BLOCK_N, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int left = blockIdx.x % tiles * BLOCK_N, group = Hq / Hkv, keys = min(BLOCK_N, Sk - left);
    const long long pair = blockIdx.x / tiles, batch = pair / Hkv, head_kv = pair % Hkv;
    const int row = warp % (BLOCK_N / 16) * 16, col = warp / (BLOCK_N / 16) * OWN_COLS;  // of this warp's dk and dv
    const int dq_row = warp % (BLOCK_M / 16) * 16, dq_col = warp / (BLOCK_M / 16) * DQ_COLS;
    // Queries before `first` see no key of the tile; without causality the shift is so large that all see all.
    const int shift = causal ? Sk - Sq : Sk;
    const int first = max(0, left - shift) / BLOCK_M * BLOCK_M;
    const int steps = first < Sq ? (Sq - first + BLOCK_M - 1) / BLOCK_M : 0;
    q += batch * q_batch + head_kv * group * q_head;
    grad += batch * do_batch + head_kv * group * do_head;
    const long long row_of_group = (batch * Hq + head_kv * group) * Sq;

    load_tile<BLOCK_N, BLOCK_D>(k_tile, k + batch * k_batch + head_kv * k_head, k_row, k_col, left, Sk, dim);
    load_tile<BLOCK_N, BLOCK_D>(v_tile, v + batch * v_batch + head_kv * v_head, v_row, v_col, left, Sk, dim);
    if (steps) {
        load_queries(
            q_tiles, do_tiles, statistics, q, q_row, q_col, grad, do_row, do_col, delta + row_of_group,
            lse2 + row_of_group, first, Sq, dim);
    }
    Gradient dk_acc = {}, dv_acc = {};
    int start = first, stage = 0;
    for (int head = 0; head < group && steps;) {
        const int next = start + BLOCK_M < Sq ? start + BLOCK_M : first, next_head = next > start ? head : head + 1;
        const long long rows = row_of_group + (long long)head * Sq;
        ELEMENT *q_tile = q_tiles + stage * BLOCK_M * BLOCK_D, *do_tile = do_tiles + stage * BLOCK_M * BLOCK_D;
        const float *lse_i = statistics + stage * 2 * BLOCK_M, *delta_i = lse_i + BLOCK_M;
        stage ^= 1;
        cp_async_wait<0>();
        __syncthreads();  // this stage has arrived; the other one and ds_tile are used
        if (next_head < group) {
            const long long next_rows = row_of_group + (long long)next_head * Sq;
            load_queries(
                q_tiles + stage * BLOCK_M * BLOCK_D, do_tiles + stage * BLOCK_M * BLOCK_D,
                statistics + stage * 2 * BLOCK_M, q + next_head * q_head, q_row, q_col, grad + next_head * do_head,
                do_row, do_col, delta + next_rows, lse2 + next_rows, next, Sq, dim);
        }
        if (row < keys) {
            const bool masked = keys < BLOCK_N || left + row + 15 > start + shift || start + BLOCK_M > Sq;
            const int key = row + lane / 4;
            Scores p, ds;
            unsigned weights[BLOCK_M / 16][4];
            scores(p, k_tile, q_tile, row, lane);
            probabilities(p, lse_i, scale2, masked, start, left + key - shift, Sq, keys - key, lane);
#pragma unroll
            for (int m = 0; m < BLOCK_M / 16; ++m) to_a(weights[m], p[2 * m], p[2 * m + 1]);
            accumulate(dv_acc, weights, do_tile, col, lane);
            scores(ds, v_tile, do_tile, row, lane);
            score_gradients(ds, p, delta_i, lane);
#pragma unroll
            for (int m = 0; m < BLOCK_M / 16; ++m) to_a(weights[m], ds[2 * m], ds[2 * m + 1]);
            if (col == 0) store_ds(ds_tile, weights, key, lane);
            accumulate(dk_acc, weights, q_tile, col, lane);
        }
        __syncthreads();  // ds_tile is there
        if (start + dq_row < Sq) {
            add_dq(dq + (rows + start) * dim, ds_tile, k_tile, dq_row, dq_col, keys, Sq - start, dim, lane);
        }
        start = next;
        head = next_head;
    }
    cp_async_wait<0>();
    const long long own = (pair * Sk + left) * dim;
    store_gradients(dk + own, dv + own, dk_acc, dv_acc, scale, row, col, keys, dim, lane);
}

extern "C" __global__ void round_dq(const float* sums, ELEMENT* dq, long long count, float scale) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) dq[index] = from_float<ELEMENT>(sums[index] * scale);
}
