#include "common.cuh"

enum Fault {
    none,
    one_key_too_many,
    merged_unweighted,
    no_rotary_part,
    values_of_the_last_columns,
    first_length,
    first_head,
    depth_in_sixteens,
    no_barrier_before_weights,
};

constexpr int MOST = 4, WIDEST = 576; // warps of a block, each with every such key; columns of a row of the cache

// A block for each query: its warps take keys in turn, and meet in shared memory.
extern "C" __global__ void mla_decode_parts(
    const ELEMENT* q, const ELEMENT* cache, const int* lengths, ELEMENT* o, float* lse, long long q_b, long long q_h,
    long long q_s, long long q_d, long long c_b, long long c_s, long long c_d, long long length_row, float scale,
    int heads, int seq, int keys, int width, int dim_v, int fault) {
    __shared__ float parts[MOST][WIDEST], of_parts[MOST];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int row = blockIdx.x, b = row / (heads * seq), h = row / seq % heads, i = row % seq;
    int last = lengths[fault == first_length ? 0 : b * length_row] - seq + i + 1;
    if (fault == one_key_too_many && last < keys) ++last;
    q += b * q_b + (fault == first_head ? 0 : h) * q_h + i * q_s;
    cache += b * c_b;
    const ELEMENT* values = cache + (fault == values_of_the_last_columns ? width - dim_v : 0) * c_d;
    int columns = fault == no_rotary_part ? dim_v : width;
    if (fault == depth_in_sixteens) columns = columns / 16 * 16;

    float m = -3e38f, l = 0.0f, own[WIDEST / 32] = {};
    for (int j = warp; j < last; j += warps) {
        float dot = 0.0f;
        for (int d = lane; d < columns; d += 32) dot += to_float(q[d * q_d]) * to_float(cache[j * c_s + d * c_d]);
        const float s = warp_sum(dot) * scale, larger = fmaxf(m, s), kept = expf(m - larger), p = expf(s - larger);
        l = l * kept + p;
        for (int d = lane; d < dim_v; d += 32)
            own[d / 32] = own[d / 32] * kept + p * to_float(values[j * c_s + d * c_d]);
        m = larger;
    }
    for (int d = lane; d < dim_v; d += 32) parts[warp][d] = l > 0.0f ? own[d / 32] / l : 0.0f;
    if (lane == 0) of_parts[warp] = l > 0.0f ? m + logf(l) : -INFINITY;
    if (fault != no_barrier_before_weights) __syncthreads();
    if (warp > 0) return;

    float most = of_parts[0], total = 0.0f;
    for (int part = 1; part < warps; ++part) most = fmaxf(most, of_parts[part]);
    if (most == -INFINITY) most = 0.0f;
    for (int part = 0; part < warps; ++part) total += expf(of_parts[part] - most);
    for (int d = lane; d < dim_v; d += 32) {
        float sum = 0.0f;
        for (int part = 0; part < warps; ++part) {
            const float weight = total > 0.0f ? expf(of_parts[part] - most) / total : 0.0f;
            sum += parts[part][d] * (fault == merged_unweighted ? 1.0f / warps : weight);
        }
        o[(long long)row * dim_v + d] = from_float<ELEMENT>(sum);
    }
    if (lane == 0) lse[row] = most + logf(total);
}
