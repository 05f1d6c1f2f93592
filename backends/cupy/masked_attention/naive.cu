// Masked scores, softmax, product with v: three launches around float scores of shape (batch * heads, Sq, Sk).
#include "masks.cuh"

// One thread per score.
extern "C" __global__ void masked_scores(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_row, long long q_col,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_row, long long k_col,
    const ELEMENT* bias, const float* slopes, const int* seg_q, const int* seg_k, const Mods mods,
    float* s, long long count, int kv_heads, int dim) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const long long j = index % mods.Sk, i = index / mods.Sk % mods.Sq, pair = index / mods.Sk / mods.Sq;
    q += pair / mods.heads * q_batch + pair % mods.heads * q_head + i * q_row;
    k += pair / mods.heads * k_batch + pair % mods.heads / (mods.heads / kv_heads) * k_head + j * k_row;
    float sum = 0.0f;
    for (int d = 0; d < dim; ++d) sum += to_float(q[d * q_col]) * to_float(k[d * k_col]);
    s[index] = masked_score(sum, Given(bias, slopes, seg_q, seg_k, mods, pair), mods, i, j).value;
}

// One thread per row of scores: probabilities in place, after dropout, and lse.
extern "C" __global__ void masked_softmax(float* s, float* lse, long long rows, const Mods mods) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    s += row * mods.Sk;
    float m = -INFINITY;
    for (int j = 0; j < mods.Sk; ++j) m = maximum(m, s[j]);
    const float base = fabsf(m) == INFINITY ? 0.0f : m;  // inf - inf is NaN: such a row stays unshifted
    float l = 0.0f;
    for (int j = 0; j < mods.Sk; ++j) l += expf(s[j] - base);
    if (l == 0.0f) l = 1.0f;  // a row that sees nothing: zeros and m = -inf
    for (int j = 0; j < mods.Sk; ++j) {
        s[j] = after_dropout(expf(s[j] - base) / l, mods, row / mods.Sq, row % mods.Sq, j);
    }
    lse[row] = m + logf(l);
}

// One thread per element of o.
extern "C" __global__ void masked_values(
    const float* p, const ELEMENT* v, long long v_batch, long long v_head, long long v_row, long long v_col,
    ELEMENT* o, long long count, const Mods mods, int kv_heads, int dim) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const long long row = index / dim, pair = row / mods.Sq;
    p += row * mods.Sk;
    v += pair / mods.heads * v_batch + pair % mods.heads / (mods.heads / kv_heads) * v_head + index % dim * v_col;
    float sum = 0.0f;
    for (int j = 0; j < mods.Sk; ++j) sum += p[j] * to_float(v[j * v_row]);
    o[index] = from_float<ELEMENT>(sum);
}
