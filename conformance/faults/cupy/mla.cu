#include "common.cuh"

enum Fault {
    none,
    no_rotary_part,
    first_projection,
    scale_without_rotary,
    top_left,
    not_rescaled,
    last_key_lost,
    only_rotary_part,
    no_barrier_before_keys,
};

constexpr int WIDEST = 512; // latents

// A warp for each query, with the query's and the output's latents in shared memory.
extern "C" __global__ void mla_online(
    const ELEMENT* q_nope, const ELEMENT* q_rope, const ELEMENT* c, const ELEMENT* k_rope, const ELEMENT* w_uk,
    const ELEMENT* w_uv, ELEMENT* o, float* lse, long long n_b, long long n_h, long long n_s, long long n_d,
    long long r_b, long long r_h, long long r_s, long long r_d, long long c_b, long long c_s, long long c_d,
    long long k_b, long long k_s, long long k_d, long long uk_h, long long uk_r, long long uk_d, long long uv_h,
    long long uv_r, long long uv_d, float scale, int heads, int queries, int keys, int dim, int rotary, int latents,
    int dim_v, bool causal, int fault) {
    __shared__ float latent_q[WIDEST], latent_o[WIDEST];
    const int lane = threadIdx.x, row = blockIdx.x, b = row / (heads * queries), h = row / queries % heads;
    const int i = row % queries;
    q_nope += b * n_b + h * n_h + i * n_s;
    q_rope += b * r_b + h * r_h + i * r_s;
    c += b * c_b;
    k_rope += b * k_b;
    w_uk += (fault == first_projection ? 0 : h) * uk_h;
    w_uv += (fault == first_projection ? 0 : h) * uv_h;
    if (fault == scale_without_rotary) scale *= sqrtf((float)(dim + rotary) / dim);
    for (int r = lane; r < latents; r += 32) {
        float sum = 0.0f;
        for (int d = 0; d < dim; ++d) sum += to_float(q_nope[d * n_d]) * to_float(w_uk[r * uk_r + d * uk_d]);
        latent_q[r] = sum;
        latent_o[r] = 0.0f;
    }
    if (fault != no_barrier_before_keys) __syncthreads();
    int last = causal ? min(keys, i + (fault == top_left ? 1 : keys - queries + 1)) : keys;
    if (fault == last_key_lost) --last;

    float m = -3e38f, l = 0.0f;
    for (int j = 0; j < last; ++j) {
        float dot = 0.0f;
        for (int n = lane; n < latents; n += 32) {
            const int r = latents - 1 - n; // mostly another lane's
            dot += latent_q[r] * to_float(c[j * c_s + r * c_d]);
        }
        if (fault == only_rotary_part) dot = 0.0f;
        if (fault != no_rotary_part)
            for (int d = lane; d < rotary; d += 32)
                dot += to_float(q_rope[d * r_d]) * to_float(k_rope[j * k_s + d * k_d]);
        const float s = warp_sum(dot) * scale, larger = fmaxf(m, s), kept = expf(m - larger), p = expf(s - larger);
        l = l * kept + p;
        for (int r = lane; r < latents; r += 32)
            latent_o[r] = latent_o[r] * (fault == not_rescaled ? 1.0f : kept) + p * to_float(c[j * c_s + r * c_d]);
        m = larger;
    }
    __syncthreads();
    for (int e = lane; e < dim_v; e += 32) {
        float sum = 0.0f;
        for (int r = 0; r < latents; ++r) sum += latent_o[r] * to_float(w_uv[r * uv_r + e * uv_d]);
        o[(long long)row * dim_v + e] = from_float<ELEMENT>(l > 0.0f ? sum / l : 0.0f);
    }
    if (lane == 0) lse[row] = l > 0.0f ? m + logf(l) : -INFINITY;
}
