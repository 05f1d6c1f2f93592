#include "philox.cuh"
#include "common.cuh"

enum Fault {
    none,
    window_one_more,
    window_top_left,
    slope_of_head_0,
    softcap_last,
    segments_by_query,
    dropout_by_key,
    dropout_in_lse,
    segment_of_tile,
    no_barrier_before_sum,
};

constexpr int KEYS = 256, THREADS = 64;

__device__ inline float capped(float s, float softcap) { return softcap > 0.0f ? softcap * tanhf(s / softcap) : s; }

// A block for each query, whose threads share its scores.
extern "C" __global__ void masked_rows(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const ELEMENT* bias, const float* slopes, const int* seg_q,
    const int* seg_k, ELEMENT* o, float* lse, long long q_b, long long q_h, long long q_s, long long q_d, long long k_b,
    long long k_h, long long k_s, long long k_d, long long v_b, long long v_h, long long v_s, long long v_d,
    long long bias_b, long long bias_h, long long bias_i, long long bias_j, long long slope, long long seg_q_b,
    long long seg_q_i, long long seg_k_b, long long seg_k_j, int heads, int kv_heads, int seq_q, int seq_k, int dim,
    int causal, float scale, float softcap, int window, long long threshold, float keep_scale, unsigned long long seed,
    unsigned long long offset, int fault) {
    __shared__ float scores[KEYS], weights[KEYS];
    const int row = blockIdx.x, i = row % seq_q, h = row / seq_q % heads, b = row / seq_q / heads;
    const int reader = h / (heads / kv_heads);
    q += b * q_b + h * q_h + i * q_s;
    k += b * k_b + reader * k_h;
    v += b * v_b + reader * v_h;
    if (fault == window_one_more) ++window;

    for (int j = threadIdx.x; j < seq_k; j += THREADS) {
        float dot = 0.0f;
        for (int d = 0; d < dim; ++d) dot += to_float(q[d * q_d]) * to_float(k[j * k_s + d * k_d]);
        const int apart = i + seq_k - seq_q - j, place = fault == window_top_left ? i - j : apart;
        float s = fault == softcap_last ? dot * scale : capped(dot * scale, softcap);
        if (slopes) s -= slopes[fault == slope_of_head_0 ? 0 : h * slope] * abs(apart);
        if (bias) s += to_float(bias[b * bias_b + h * bias_h + i * bias_i + j * bias_j]);
        if (fault == softcap_last) s = capped(s, softcap);
        bool seen = abs(place) < window && (!causal || place >= 0);
        if (seg_q) {
            const int own = seg_q[b * seg_q_b + i * seg_q_i];
            const int of_query = fault == segments_by_query ? seg_k[b * seg_k_b + min(i, seq_k - 1) * seg_k_j] : own;
            const int key = fault == segment_of_tile ? j / 16 * 16 : j;
            seen = seen && of_query == seg_k[b * seg_k_b + key * seg_k_j];
        }
        const long long e = fault == dropout_by_key ? j : (long long)row * seq_k + j;
        const bool kept = philox(e >> 2, seed, offset).word[e & 3] >= threshold;
        if (fault == dropout_in_lse && !kept) seen = false;
        scores[j] = seen ? s : -INFINITY;
        weights[j] = kept ? keep_scale : 0.0f;
    }
    if (fault != no_barrier_before_sum) __syncthreads();

    float m = -INFINITY, l = 0.0f;
    for (int j = 0; j < seq_k; ++j) m = fmaxf(m, scores[j]);
    const float shift = m == -INFINITY ? 0.0f : m;
    for (int j = 0; j < seq_k; ++j) l += expf(scores[j] - shift);
    for (int d = threadIdx.x; d < dim; d += THREADS) {
        float sum = 0.0f;
        for (int j = 0; j < seq_k; ++j) sum += expf(scores[j] - shift) * weights[j] * to_float(v[j * v_s + d * v_d]);
        o[(long long)row * dim + d] = from_float<ELEMENT>(l > 0.0f ? sum / l : 0.0f);
    }
    if (threadIdx.x == 0) lse[row] = shift + logf(l);
}
