#include "common.cuh"

enum Fault {
    none,
    one_key_too_many,
    merged_unweighted,
    heads_modulo,
    first_length,
    mask_of_another_row,
    no_barrier_before_weights,
};

constexpr int MOST = 4, WIDEST = 128; // warps of a block, each with every such key; of D

// A block for each query: its warps take keys in turn, and meet in shared memory.
extern "C" __global__ void attention_decode_parts(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* lengths, ELEMENT* o, float* lse, long long q_b,
    long long q_h, long long q_s, long long q_d, long long k_b, long long k_h, long long k_s, long long k_d,
    long long v_b, long long v_h, long long v_s, long long v_d, long long length_row, float scale, int heads,
    int kv_heads, int seq, int keys, int dim, int fault) {
    __shared__ float parts[MOST][WIDEST], of_parts[MOST];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int row = blockIdx.x, b = row / (heads * seq), h = row / seq % heads, i = row % seq;
    const int reader = fault == heads_modulo ? h % kv_heads : h / (heads / kv_heads);
    const int packed = h % (heads / kv_heads) * seq + i; // among the rows of a key head
    const int query = fault == mask_of_another_row ? packed / (heads / kv_heads) : i;
    int last = lengths[fault == first_length ? 0 : b * length_row] - seq + query + 1;
    if (fault == one_key_too_many && last < keys) ++last;
    q += b * q_b + h * q_h + i * q_s;
    k += b * k_b + reader * k_h;
    v += b * v_b + reader * v_h;

    float m = -3e38f, l = 0.0f, own[WIDEST / 32] = {};
    for (int j = warp; j < last; j += warps) {
        float dot = 0.0f;
        for (int d = lane; d < dim; d += 32) dot += to_float(q[d * q_d]) * to_float(k[j * k_s + d * k_d]);
        const float s = warp_sum(dot) * scale, larger = fmaxf(m, s), kept = expf(m - larger), p = expf(s - larger);
        l = l * kept + p;
        for (int d = lane; d < dim; d += 32) own[d / 32] = own[d / 32] * kept + p * to_float(v[j * v_s + d * v_d]);
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
