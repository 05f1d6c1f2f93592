// Scores, softmax, product with v: three launches around float scores of shape (batch * Hq, Sq, Sk).
#include "common.cuh"

// One thread per score: s = scale * q . k, -inf where causality hides the key.
extern "C" __global__ void attention_scores(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    float* s, long long count, int Hq, int Hkv, int Sq, int Sk, int dim, float scale, int causal) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const int j = index % Sk, i = index / Sk % Sq;
    const long long pair = index / Sk / Sq;  // (batch, query head)
    q += pair / Hq * q_batch + pair % Hq * q_head + i * q_row;
    k += pair / Hq * k_batch + pair % Hq / (Hq / Hkv) * k_head + j * k_row;

    float score = -INFINITY;
    if (!causal || j <= i + (Sk - Sq)) {
        float sum = 0.0f;
        for (int d = 0; d < dim; ++d) sum += to_float(q[d * q_col]) * to_float(k[d * k_col]);
        score = sum * scale;
    }
    s[index] = score;
}

// One thread per row of scores: probabilities in place, and lse.
extern "C" __global__ void attention_softmax(float* s, float* lse, long long rows, int Sk) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    s += row * Sk;
    float m = -INFINITY;
    for (int j = 0; j < Sk; ++j) m = maximum(m, s[j]);
    const float base = fabsf(m) == INFINITY ? 0.0f : m;  // inf - inf is NaN: such a row stays unshifted
    float l = 0.0f;
    for (int j = 0; j < Sk; ++j) l += expf(s[j] - base);
    if (l == 0.0f) l = 1.0f;  // a row that sees nothing: zeros and m = -inf
    for (int j = 0; j < Sk; ++j) s[j] = expf(s[j] - base) / l;
    lse[row] = m + logf(l);
}

// One thread per element of o.
extern "C" __global__ void attention_values(
    const float* p, const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    ELEMENT* o, long long count, int Hq, int Hkv, int Sq, int Sk, int dim) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const long long row = index / dim, pair = row / Sq;
    p += row * Sk;
    v += pair / Hq * v_batch + pair % Hq / (Hq / Hkv) * v_head + index % dim * v_col;
    float sum = 0.0f;
    for (int j = 0; j < Sk; ++j) sum += p[j] * to_float(v[j * v_row]);
    o[index] = from_float<ELEMENT>(sum);
}
