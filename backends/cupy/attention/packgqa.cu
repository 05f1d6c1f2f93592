// A block for ROWS rows of the queries of a key head, and for `keys` of the keys: each of gridDim.y parts.
#include "packed_groups.cuh"
#include "splits.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void attention_packgqa(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, float* parts, float* part_lse, long long q_b, long long q_h,
    long long q_s, long long q_d, long long k_b, long long k_h, long long k_s, long long k_d, long long v_b,
    long long v_h, long long v_s, long long v_d, float scale, int heads, int group, int seq, int seen, int keys,
    int dim, int ahead) {
    const int rows = group * seq, tiles = (rows + ROWS - 1) / ROWS, top = blockIdx.x % tiles * ROWS;
    const long long pair = blockIdx.x / tiles, b = pair / heads, h = pair % heads;  // of key heads
    const Queries queries{q + b * q_b + h * group * q_h, q_h, q_s, q_d, rows, seq, ahead};
    const Head head{k + b * k_b + h * k_h, v + b * v_b + h * v_h, k_s, k_d, v_s, v_d};
    const int first = blockIdx.y * keys, last = min(first + keys, seen), splits = gridDim.y;
    attend(
        queries, head, parts, part_lse, (pair * rows + top) * splits + blockIdx.y, splits, top, first, last, dim,
        scale);
}

extern "C" __global__ void attention_merge(
    const float* parts, const float* part_lse, ELEMENT* o, float* lse, int splits, int dim) {
    merge_parts<8>(parts, part_lse, o, lse, splits, dim);
}
