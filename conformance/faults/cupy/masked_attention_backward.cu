#include "philox.cuh"
#include "common.cuh"

enum Fault {
    none,
    window_ignored,
    window_one_more,
    softcap_without_slope,
    slope_of_head_0,
    segments_by_query,
    dropout_of_p_alone,
    delta_missing,
};

constexpr int KEYS = 256, THREADS = 64;

// A block for each query: its threads hold what its keys' gradients are made of, then add to float sums of dk and dv.
extern "C" __global__ void masked_rows_backward(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const ELEMENT* o, const float* lse, const ELEMENT* grad,
    const ELEMENT* bias, const float* slopes, const int* seg_q, const int* seg_k, ELEMENT* dq, float* dk, float* dv,
    long long q_b, long long q_h, long long q_s, long long q_d, long long k_b, long long k_h, long long k_s,
    long long k_d, long long v_b, long long v_h, long long v_s, long long v_d, long long o_b, long long o_h,
    long long o_s, long long o_d, long long lse_b, long long lse_h, long long lse_s, long long do_b, long long do_h,
    long long do_s, long long do_d, long long bias_b, long long bias_h, long long bias_i, long long bias_j,
    long long slope, long long seg_q_b, long long seg_q_i, long long seg_k_b, long long seg_k_j, int heads,
    int kv_heads, int seq_q, int seq_k, int dim, int causal, float scale, float softcap, int window,
    long long threshold, float keep_scale, unsigned long long seed, unsigned long long offset, int fault) {
    __shared__ float weights[KEYS], slopes_of[KEYS];
    const int row = blockIdx.x, i = row % seq_q, h = row / seq_q % heads, b = row / seq_q / heads;
    const int reader = h / (heads / kv_heads);
    q += b * q_b + h * q_h + i * q_s;
    o += b * o_b + h * o_h + i * o_s;
    grad += b * do_b + h * do_h + i * do_s;
    k += b * k_b + reader * k_h;
    v += b * v_b + reader * v_h;
    const float own_lse = lse[b * lse_b + h * lse_h + i * lse_s];
    float delta = 0.0f;
    for (int d = 0; d < dim; ++d) delta += to_float(grad[d * do_d]) * to_float(o[d * o_d]);
    if (fault == delta_missing) delta = 0.0f;

    for (int j = threadIdx.x; j < seq_k; j += THREADS) {
        float dot = 0.0f, dp = 0.0f, bend = 1.0f;
        for (int d = 0; d < dim; ++d) {
            dot += to_float(q[d * q_d]) * to_float(k[j * k_s + d * k_d]);
            dp += to_float(grad[d * do_d]) * to_float(v[j * v_s + d * v_d]);
        }
        float s = dot * scale;
        if (softcap > 0.0f) {
            const float bent = tanhf(s / softcap);
            s = softcap * bent;
            if (fault != softcap_without_slope) bend = 1.0f - bent * bent;
        }
        const int apart = i + seq_k - seq_q - j, reach = window + (fault == window_one_more);
        if (slopes) s -= slopes[fault == slope_of_head_0 ? 0 : h * slope] * abs(apart);
        if (bias) s += to_float(bias[b * bias_b + h * bias_h + i * bias_i + j * bias_j]);
        bool seen = (fault == window_ignored || abs(apart) < reach) && (!causal || apart >= 0);
        if (seg_q) {
            const int own = seg_q[b * seg_q_b + i * seg_q_i];
            const int of_query = fault == segments_by_query ? seg_k[b * seg_k_b + min(i, seq_k - 1) * seg_k_j] : own;
            seen = seen && of_query == seg_k[b * seg_k_b + j * seg_k_j];
        }
        const float p = seen && own_lse > -INFINITY ? expf(s - own_lse) : 0.0f;
        const long long e = (long long)row * seq_k + j;
        const float kept = philox(e >> 2, seed, offset).word[e & 3] >= threshold ? keep_scale : 0.0f;
        weights[j] = p * kept;
        slopes_of[j] = p * bend * ((fault == dropout_of_p_alone ? dp : kept * dp) - delta) * scale;
    }
    __syncthreads();

    for (int d = threadIdx.x; d < dim; d += THREADS) {
        float sum = 0.0f;
        for (int j = 0; j < seq_k; ++j) {
            sum += slopes_of[j] * to_float(k[j * k_s + d * k_d]);
            const long long at = (((long long)b * kv_heads + reader) * seq_k + j) * dim + d;
            atomicAdd(dk + at, slopes_of[j] * to_float(q[d * q_d]));
            atomicAdd(dv + at, weights[j] * to_float(grad[d * do_d]));
        }
        dq[(long long)row * dim + d] = from_float<ELEMENT>(sum);
    }
}
