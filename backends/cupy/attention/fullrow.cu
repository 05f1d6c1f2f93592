// One launch: a block keeps the whole rows of scores of QUERIES queries in shared memory; one warp per row for the
// softmax.
#include "common.cuh"

constexpr int threads = 32 * QUERIES;

extern "C" __global__ __launch_bounds__(threads) void attention_fullrow(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    ELEMENT* o, float* lse, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    extern __shared__ float shared[];
    float* q_tile = shared;             // (QUERIES, dim)
    float* s = shared + QUERIES * dim;  // (QUERIES, Sk): scores, then exponentials
    __shared__ float sums[QUERIES];
    const int tiles = (Sq + QUERIES - 1) / QUERIES;
    const long long pair = blockIdx.x / tiles;  // (batch, query head)
    const int top = blockIdx.x % tiles * QUERIES, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    q += pair / Hq * q_batch + pair % Hq * q_head;
    k += pair / Hq * k_batch + pair % Hq / (Hq / Hkv) * k_head;
    v += pair / Hq * v_batch + pair % Hq / (Hq / Hkv) * v_head;

    for (int e = threadIdx.x; e < QUERIES * dim; e += threads) {
        const int i = top + e / dim;
        q_tile[e] = i < Sq ? to_float(q[i * q_row + e % dim * q_col]) : 0.0f;
    }
    __syncthreads();

    for (int j = threadIdx.x; j < Sk; j += threads) {  // one thread per key, against all queries of the block
        float sum[QUERIES] = {};
        for (int d = 0; d < dim; ++d) {
            const float key = to_float(k[j * k_row + d * k_col]);
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) sum[r] += q_tile[r * dim + d] * key;
        }
#pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            s[r * Sk + j] = !causal || j <= top + r + (Sk - Sq) ? sum[r] * scale : -INFINITY;
        }
    }
    __syncthreads();

    float* row = s + warp * Sk;
    float m = -INFINITY, l = 0.0f;
    for (int j = lane; j < Sk; j += 32) m = maximum(m, row[j]);
    m = warp_max(m);
    const float base = fabsf(m) == INFINITY ? 0.0f : m;  // inf - inf is NaN: such a row stays unshifted
    for (int j = lane; j < Sk; j += 32) l += row[j] = expf(row[j] - base);
    l = warp_sum(l);
    if (l == 0.0f) l = 1.0f;  // a row that sees nothing: zeros and m = -inf
    if (lane == 0) {
        sums[warp] = l;
        if (top + warp < Sq) lse[pair * Sq + top + warp] = m + logf(l);
    }
    __syncthreads();

    for (int d = threadIdx.x; d < dim; d += threads) {  // one thread per column of o
        float acc[QUERIES] = {};
        for (int j = 0; j < Sk; ++j) {
            const float value = to_float(v[j * v_row + d * v_col]);
#pragma unroll
            for (int r = 0; r < QUERIES; ++r) acc[r] += s[r * Sk + j] * value;
        }
#pragma unroll
        for (int r = 0; r < QUERIES; ++r) {
            if (top + r < Sq) o[(pair * Sq + top + r) * dim + d] = from_float<ELEMENT>(acc[r] / sums[r]);
        }
    }
}
