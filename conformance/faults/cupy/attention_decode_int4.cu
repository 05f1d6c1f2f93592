#include "common.cuh"

enum Fault {
    none,
    one_key_too_many,
    merged_unweighted,
    heads_modulo,
    nibbles_swapped,
    no_shift,
    next_group,
    values_with_scales_of_keys,
    no_barrier_before_weights,
};

constexpr int MOST = 4, WIDEST = 128; // warps of a block, each with every such key; of D

struct Cache {
    const unsigned char* codes;
    const ELEMENT* scales;
    long long c_b, c_h, c_s, c_d, s_b, s_h, s_s, s_g, s_p;

    __device__ float element(int b, int h, int j, int d, int group, int groups, int fault) const {
        const int byte = codes[b * c_b + h * c_h + j * c_s + d / 2 * c_d];
        const bool high = (d % 2 == 1) != (fault == nibbles_swapped);
        const int g = fault == next_group ? (d / group + 1) % groups : d / group;
        const ELEMENT* own = scales + b * s_b + h * s_h + j * s_s + g * s_g;
        return (high ? byte >> 4 : byte & 15) * to_float(own[0]) + (fault == no_shift ? 0.0f : to_float(own[s_p]));
    }
};

// A block for each query: its warps take keys in turn, and meet in shared memory.
extern "C" __global__ void attention_decode_int4_parts(
    const ELEMENT* q, const unsigned char* k_codes, const ELEMENT* k_scales, const unsigned char* v_codes,
    const ELEMENT* v_scales, const int* lengths, ELEMENT* o, float* lse, long long q_b, long long q_h, long long q_s,
    long long q_d, long long kc_b, long long kc_h, long long kc_s, long long kc_d, long long ks_b, long long ks_h,
    long long ks_s, long long ks_g, long long ks_p, long long vc_b, long long vc_h, long long vc_s, long long vc_d,
    long long vs_b, long long vs_h, long long vs_s, long long vs_g, long long vs_p, long long length_row, float scale,
    int heads, int kv_heads, int seq, int keys, int dim, int groups, int fault) {
    __shared__ float parts[MOST][WIDEST], of_parts[MOST];
    const Cache k = {k_codes, k_scales, kc_b, kc_h, kc_s, kc_d, ks_b, ks_h, ks_s, ks_g, ks_p};
    Cache v = {v_codes, v_scales, vc_b, vc_h, vc_s, vc_d, vs_b, vs_h, vs_s, vs_g, vs_p};
    if (fault == values_with_scales_of_keys) v = {v_codes, k_scales, vc_b, vc_h, vc_s, vc_d, ks_b, ks_h, ks_s, ks_g, ks_p};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, group = dim / groups;
    const int row = blockIdx.x, b = row / (heads * seq), h = row / seq % heads, i = row % seq;
    const int reader = fault == heads_modulo ? h % kv_heads : h / (heads / kv_heads);
    int last = lengths[b * length_row] - seq + i + 1;
    if (fault == one_key_too_many && last < keys) ++last;
    q += b * q_b + h * q_h + i * q_s;

    float m = -3e38f, l = 0.0f, own[WIDEST / 32] = {};
    for (int j = warp; j < last; j += warps) {
        float dot = 0.0f;
        for (int d = lane; d < dim; d += 32)
            dot += to_float(q[d * q_d]) * k.element(b, reader, j, d, group, groups, fault);
        const float s = warp_sum(dot) * scale, larger = fmaxf(m, s), kept = expf(m - larger), p = expf(s - larger);
        l = l * kept + p;
        for (int d = lane; d < dim; d += 32)
            own[d / 32] = own[d / 32] * kept + p * v.element(b, reader, j, d, group, groups, fault);
        m = larger;
    }
    for (int d = lane; d < dim; d += 32) parts[warp][d] = l > 0.0f ? own[d / 32] / l : 0.0f;
    if (lane == 0) of_parts[warp] = l > 0.0f ? m + logf(l) : -INFINITY;
    if (fault != no_barrier_before_weights) __syncthreads();
    if (warp > 0) return;

    float most = of_parts[0], total = 0.0f;
    for (int part = 1; part < warps; ++part) most = fmaxf(most, of_parts[part]);
    if (most == -INFINITY) most = 0.0f;
    for (int part = 0; part < warps; ++part) total += expf(of_parts[part] - most);
    for (int d = lane; d < dim; d += 32) {
        float sum = 0.0f;
        for (int part = 0; part < warps; ++part) {
            const float weight = total > 0.0f ? expf(of_parts[part] - most) / total : 0.0f;
            sum += parts[part][d] * (fault == merged_unweighted ? 1.0f / warps : weight);
        }
        o[(long long)row * dim + d] = from_float<ELEMENT>(sum);
    }
    if (lane == 0) lse[row] = most + logf(total);
}
