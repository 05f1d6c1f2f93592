#include "latent.cuh"
#include "splits.cuh"

// All heads of a sequence read its one cache, of which the first dim_v columns are the value.
__device__ Work over_latents(
    const ELEMENT* q, const ELEMENT* cache, long long q_b, long long q_h, long long q_s, long long q_d, long long c_b,
    long long c_s, long long c_d, float scale, int heads, int seq, int width, int dim_v) {
    const Heads latent = {cache, c_b, 0, c_s, c_d}, rotary = {cache + dim_v * c_d, c_b, 0, c_s, c_d};
    return {
        {q, q_b, q_h, q_s, q_d}, {q + dim_v * q_d, q_b, q_h, q_s, q_d}, latent, rotary, latent, dim_v, width - dim_v,
        dim_v, true, true, heads, seq, scale};
}

extern "C" __global__ void mla_decode_flash(
    const ELEMENT* q, const ELEMENT* cache, const int* lengths, ELEMENT* o, float* lse, long long q_b, long long q_h,
    long long q_s, long long q_d, long long c_b, long long c_s, long long c_d, long long length_stride, float scale,
    int heads, int seq, int width, int dim_v) {
    const Work work = over_latents(q, cache, q_b, q_h, q_s, q_d, c_b, c_s, c_d, scale, heads, seq, width, dim_v);
    const int rows = heads * seq, row = blockIdx.x * WARPS + threadIdx.x / 32, b = blockIdx.y;
    const int length = lengths[b * length_stride];
    Row mine;
    mine.attend(work, b, 0, row, 0, length, length);
    const long long place = (long long)b * rows + row;
    if (row < rows) mine.write(o + place * dim_v, lse + place, dim_v);
}

// `keys` of the cache for each of gridDim.z parts.
extern "C" __global__ void mla_decode_splitkv(
    const ELEMENT* q, const ELEMENT* cache, const int* lengths, float* parts, float* part_lse, long long q_b,
    long long q_h, long long q_s, long long q_d, long long c_b, long long c_s, long long c_d, long long length_stride,
    float scale, int heads, int seq, int width, int dim_v, int keys) {
    const Work work = over_latents(q, cache, q_b, q_h, q_s, q_d, c_b, c_s, c_d, scale, heads, seq, width, dim_v);
    const int rows = heads * seq, row = blockIdx.x * WARPS + threadIdx.x / 32, b = blockIdx.y;
    const int first = blockIdx.z * keys;
    Row mine;
    mine.attend(work, b, 0, row, first, first + keys, lengths[b * length_stride]);
    const long long place = ((long long)b * rows + row) * gridDim.z + blockIdx.z;
    if (row < rows) mine.write(parts + place * dim_v, part_lse + place, dim_v);
}

extern "C" __global__ void mla_decode_merge(
    const float* parts, const float* part_lse, ELEMENT* o, float* lse, int splits, int dim_v) {
    merge_parts<HELD>(parts, part_lse, o, lse, splits, dim_v);
}
