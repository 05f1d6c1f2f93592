// A block for ROWS rows of the queries of a key head, and for `keys` of the cache: each of gridDim.y parts.
#include "packed_groups.cuh"

// A head of keys and values, a row each after another.
struct Head {
    const ELEMENT *k, *v;
    long long k_s, k_d, v_s, v_d;

    __device__ KeyValue start() const { return {k, v}; }
    __device__ KeyValue at(long long j) const { return {k + j * k_s, v + j * v_s}; }
    __device__ long long key_step() const { return k_d; }
    __device__ long long value_step() const { return v_d; }
};

extern "C" __global__ __launch_bounds__(THREADS) void attention_decode_packgqa(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* lengths, float* parts, float* part_lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long k_b, long long k_h, long long k_s,
    long long k_d, long long v_b, long long v_h, long long v_s, long long v_d, long long length_stride, float scale,
    int heads, int group, int seq, int keys, int dim) {
    const int rows = group * seq, tiles = (rows + ROWS - 1) / ROWS, top = blockIdx.x % tiles * ROWS;
    const long long pair = blockIdx.x / tiles, b = pair / heads, h = pair % heads;  // of key heads
    const Queries queries{q + b * q_b + h * group * q_h, q_h, q_s, q_d, rows, seq};
    const Head head{k + b * k_b + h * k_h, v + b * v_b + h * v_h, k_s, k_d, v_s, v_d};
    const int first = blockIdx.y * keys, splits = gridDim.y;
    attend(
        queries, head, parts, part_lse, (pair * rows + top) * splits + blockIdx.y, splits, top, first, first + keys,
        lengths[b * length_stride], dim, scale);
}
