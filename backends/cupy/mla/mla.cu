#include "latent.cuh"

// out (B, heads, M, N) = a (B, heads, M, K) · b (B, heads, K, N), a thread for each element.
extern "C" __global__ void mla_product(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* out, long long a_b, long long a_h, long long a_m, long long a_k,
    long long b_b, long long b_h, long long b_k, long long b_n, int heads, int M, int K, int N, long long elements) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= elements) return;
    const long long n = index % N, m = index / N % M, pair = index / N / M;
    a += pair / heads * a_b + pair % heads * a_h + m * a_m;
    b += pair / heads * b_b + pair % heads * b_h + n * b_n;
    float sum = 0.0f;
    for (long long k = 0; k < K; ++k) sum += to_float(a[k * a_k]) * to_float(b[k * b_k]);
    out[index] = from_float<ELEMENT>(sum);
}

// `readers` heads of keys, for `group` query heads each; v is k where it is `shared`.
extern "C" __global__ void mla_attention(
    const ELEMENT* q, const ELEMENT* r, const ELEMENT* k, const ELEMENT* t, const ELEMENT* v, ELEMENT* o, float* lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long r_b, long long r_h, long long r_s,
    long long r_d, long long k_b, long long k_h, long long k_s, long long k_d, long long t_b, long long t_s,
    long long t_d, long long v_b, long long v_h, long long v_s, long long v_d, float scale, int readers, int group,
    int seq, int keys, int dim, int rotary, int dim_v, bool causal, bool shared) {
    const Work work = {
        {q, q_b, q_h, q_s, q_d}, {r, r_b, r_h, r_s, r_d}, {k, k_b, k_h, k_s, k_d}, {t, t_b, 0, t_s, t_d},
        {v, v_b, v_h, v_s, v_d}, dim, rotary, dim_v, shared, causal, group, seq, scale};
    const int rows = group * seq, row = blockIdx.x * WARPS + threadIdx.x / 32;
    Row mine;
    mine.attend(work, blockIdx.y / readers, blockIdx.y % readers, row, 0, keys, keys);
    const long long place = (long long)blockIdx.y * rows + row;
    if (row < rows) mine.write(o + place * dim_v, lse + place, dim_v);
}
