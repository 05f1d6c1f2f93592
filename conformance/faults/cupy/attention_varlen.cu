#include "common.cuh"

enum Fault {
    none,
    next_sequence_seen,
    causal_by_row,
    offsets_of_q_for_k,
    no_key_gives_nan,
    rows_behind_left,
    lse_by_rows,
    heads_modulo,
    border_tile_whole,
    no_barrier_before_scores,
    no_barrier_before_next_keys,
};

constexpr int KEYS = 32, WIDEST = 128; // keys a round, one a lane; of D

// A block for each sequence and head: its warps take queries in turn, and share the keys and values of a round.
extern "C" __global__ void attention_varlen_blocks(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* cu_q, const int* cu_k, ELEMENT* o, float* lse,
    long long q_t, long long q_h, long long q_d, long long k_t, long long k_h, long long k_d, long long v_t,
    long long v_h, long long v_d, long long cu_q_row, long long cu_k_row, float scale, int sequences, int rows,
    int all_keys, int heads, int kv_heads, int dim, int causal, int fault) {
    __shared__ float keys[KEYS][WIDEST + 1], values[KEYS][WIDEST + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int b = blockIdx.x / heads, h = blockIdx.x % heads;
    const int reader = fault == heads_modulo ? h % kv_heads : h / (heads / kv_heads);
    const int first_q = cu_q[b * cu_q_row], end_q = b < sequences ? cu_q[(b + 1) * cu_q_row] : rows;
    int first_k = cu_k[b * cu_k_row], end_k = b < sequences ? cu_k[(b + 1) * cu_k_row] : first_k;
    if (fault == offsets_of_q_for_k && b < sequences) first_k = min(first_q, all_keys), end_k = min(end_q, all_keys);
    if (fault == rows_behind_left && b == sequences) return;
    const int seq_k = end_k - first_k, shift = seq_k - (end_q - first_q);

    for (int top = first_q; top < end_q; top += warps) {
        const int row = top + warp, i = row - first_q;
        float m = -INFINITY, l = 0.0f, own[WIDEST / 32] = {};
        for (int start = 0; start < seq_k; start += KEYS) {
            if (fault != no_barrier_before_next_keys) __syncthreads();
            for (int e = threadIdx.x; e < KEYS * dim; e += blockDim.x) {
                const int j = e / dim, d = e % dim;
                const bool inside = first_k + start + j < (fault == next_sequence_seen ? all_keys : end_k);
                const long long at = inside ? first_k + start + j : 0;
                keys[j][d] = inside ? to_float(k[at * k_t + reader * k_h + d * k_d]) : 0.0f;
                values[j][d] = inside ? to_float(v[at * v_t + reader * v_h + d * v_d]) : 0.0f;
            }
            if (fault != no_barrier_before_scores) __syncthreads();
            if (row >= end_q) continue;
            const int j = start + lane;
            float dot = 0.0f;
            for (int d = 0; d < dim; ++d) {
                dot += to_float(q[(long long)row * q_t + h * q_h + d * q_d]) * keys[lane][d];
            }
            bool seen = j < seq_k || (fault == next_sequence_seen && first_k + j < all_keys);
            const int masked = fault == border_tile_whole ? start : j;
            if (causal) seen = seen && (fault == causal_by_row ? first_k + j <= row : masked <= i + shift);
            const float s = seen ? dot * scale : -INFINITY;
            float larger = fmaxf(m, s);
            for (int step = 16; step > 0; step /= 2) larger = fmaxf(larger, __shfl_xor_sync(all_lanes, larger, step));
            const float base = larger == -INFINITY ? 0.0f : larger, p = expf(s - base), kept = expf(m - base);
            l = l * kept + warp_sum(p);
            m = larger;
            for (int r = 0; r < WIDEST / 32; ++r) own[r] *= kept;
            for (int other = 0; other < (fault == next_sequence_seen ? KEYS : min(KEYS, seq_k - start)); ++other) {
                const float weight = __shfl_sync(all_lanes, p, other);
                for (int r = 0; 32 * r + lane < dim; ++r) own[r] += weight * values[other][32 * r + lane];
            }
        }
        if (row >= end_q) continue;
        const float total = l == 0.0f && fault != no_key_gives_nan ? 1.0f : l;
        for (int r = 0; 32 * r + lane < dim; ++r) {
            o[((long long)row * heads + h) * dim + 32 * r + lane] = from_float<ELEMENT>(own[r] / total);
        }
        if (lane == 0) lse[fault == lse_by_rows ? row * heads + h : h * rows + row] = l == 0.0f ? m : m + logf(l);
    }
}
