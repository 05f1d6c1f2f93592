#include "common.cuh"

enum Fault {
    none,
    next_sequence_seen,
    causal_by_row,
    delta_left_out,
    dk_not_scaled,
    group_not_summed,
    unseen_keys_left,
    rows_behind_left,
    lse_by_rows,
};

constexpr int HELD = 4; // of D in each lane: 128 in all

// Elements of (T, heads, D) with any strides.
struct Packed {
    const ELEMENT* first;
    long long t, h, d;

    __device__ float at(long long row, long long head, int place) const {
        return to_float(first[row * t + head * h + place * d]);
    }
};

__device__ void store(ELEMENT* out, long long row, const float (&held)[HELD], float factor, int dim) {
    for (int r = 0; 32 * r + threadIdx.x < dim; ++r) {
        out[row * dim + 32 * r + threadIdx.x] = from_float<ELEMENT>(held[r] * factor);
    }
}

// The sequence of a row; `sequences` for one that belongs to none.
__device__ int sequence_of(int row, const int* cu, long long stride, int sequences) {
    int low = 0, high = sequences;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (cu[(middle + 1) * stride] <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// A warp for each row and head of dq, then one for each of dk and dv.
extern "C" __global__ void attention_varlen_backward_rows(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const ELEMENT* o, const float* lse, const ELEMENT* grad,
    const int* cu_q, const int* cu_k, ELEMENT* dq, ELEMENT* dk, ELEMENT* dv, long long q_t, long long q_h,
    long long q_d, long long k_t, long long k_h, long long k_d, long long v_t, long long v_h, long long v_d,
    long long o_t, long long o_h, long long o_d, long long lse_h, long long lse_t, long long do_t, long long do_h,
    long long do_d, long long cu_q_row, long long cu_k_row, float scale, int sequences, int rows, int all_keys,
    int heads, int kv_heads, int dim, int causal, int fault) {
    const Packed of_q{q, q_t, q_h, q_d}, of_k{k, k_t, k_h, k_d}, of_v{v, v_t, v_h, v_d}, of_o{o, o_t, o_h, o_d};
    const Packed of_do{grad, do_t, do_h, do_d};
    const int queries = rows * heads, group = heads / kv_heads;
    const bool for_dq = blockIdx.x < queries;
    const int own = for_dq ? blockIdx.x / heads : (blockIdx.x - queries) / kv_heads;
    const int head = for_dq ? blockIdx.x % heads : (blockIdx.x - queries) % kv_heads * group;
    const int reader = head / group;
    const int b = sequence_of(own, for_dq ? cu_q : cu_k, for_dq ? cu_q_row : cu_k_row, sequences);
    if (fault == rows_behind_left && b == sequences) return;
    const int first_q = cu_q[b * cu_q_row], end_q = b < sequences ? cu_q[(b + 1) * cu_q_row] : first_q;
    const int first_k = cu_k[b * cu_k_row], end_k = b < sequences ? cu_k[(b + 1) * cu_k_row] : first_k;
    if (fault == unseen_keys_left && !for_dq && first_q == end_q) return;

    float mine[HELD] = {}, more[HELD] = {};
    for (int h = head; h < (for_dq ? head + 1 : head + group); ++h) {
        if (fault == group_not_summed && !for_dq) {
            for (int r = 0; r < HELD; ++r) mine[r] = more[r] = 0.0f;
        }
        int last = for_dq ? end_k : end_q;
        if (fault == next_sequence_seen && for_dq) last = min(first_k + (end_k - first_k + 15) / 16 * 16, all_keys);
        const auto hidden = [&](int other) {
            const int i = for_dq ? own : other, j = for_dq ? other : own;
            return causal && !(fault == causal_by_row ? j <= i : end_k - j >= end_q - i);
        };
        for (int start = for_dq ? first_k : first_q; start < last; start += 32) {
            const int other = start + threadIdx.x;
            const int i = for_dq ? own : other, j = for_dq ? other : own;
            float p = 0.0f, ds = 0.0f;
            if (other < last && !hidden(other)) {
                float score = 0.0f, of_p = 0.0f, delta = 0.0f;
                for (int d = 0; d < dim; ++d) {
                    score += of_q.at(i, h, d) * of_k.at(j, reader, d);
                    of_p += of_do.at(i, h, d) * of_v.at(j, reader, d);
                    delta += of_do.at(i, h, d) * of_o.at(i, h, d);
                }
                const float of_row = fault == lse_by_rows ? lse[(long long)i * heads + h] : lse[h * lse_h + i * lse_t];
                p = of_row == -INFINITY ? 0.0f : expf(score * scale - of_row);
                ds = p * (of_p - (fault == delta_left_out ? 0.0f : delta));
            }
            for (int lane = 0; lane < min(32, last - start); ++lane) {
                const float p_of = __shfl_sync(all_lanes, p, lane), ds_of = __shfl_sync(all_lanes, ds, lane);
                if (hidden(start + lane)) continue;
                for (int r = 0; 32 * r + threadIdx.x < dim; ++r) {
                    const int d = 32 * r + threadIdx.x;
                    mine[r] += ds_of * (for_dq ? of_k.at(start + lane, reader, d) : of_q.at(start + lane, h, d));
                    if (!for_dq) more[r] += p_of * of_do.at(start + lane, h, d);
                }
            }
        }
    }
    if (for_dq) {
        store(dq, (long long)own * heads + head, mine, scale, dim);
    } else {
        store(dk, (long long)own * kv_heads + reader, mine, fault == dk_not_scaled ? 1.0f : scale, dim);
        store(dv, (long long)own * kv_heads + reader, more, 1.0f, dim);
    }
}
