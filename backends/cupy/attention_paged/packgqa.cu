// A block for ROWS rows of the queries of a key head, and for `keys` of a sequence: each of gridDim.y parts.
#include "packed_groups.cuh"

// A head of keys and values in pages, which the table gives to the sequence.
struct Pages {
    const ELEMENT *k, *v;
    const int* table;
    long long table_n, k_p, k_r, k_d, v_p, v_r, v_d;
    int page;

    __device__ KeyValue start() const { return {k, v}; }
    __device__ KeyValue at(int j) const {
        const long long held = table[j / page * table_n], row = j % page;
        return {k + held * k_p + row * k_r, v + held * v_p + row * v_r};
    }
    __device__ long long key_step() const { return k_d; }
    __device__ long long value_step() const { return v_d; }
};

extern "C" __global__ __launch_bounds__(THREADS) void attention_paged_packgqa(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* table, const int* lengths, float* parts,
    float* part_lse, long long q_b, long long q_h, long long q_s, long long q_d, long long k_p, long long k_r,
    long long k_h, long long k_d, long long v_p, long long v_r, long long v_h, long long v_d, long long table_b,
    long long table_n, long long length_stride, float scale, int heads, int group, int seq, int keys, int page,
    int dim) {
    const int rows = group * seq, tiles = (rows + ROWS - 1) / ROWS, top = blockIdx.x % tiles * ROWS;
    const long long pair = blockIdx.x / tiles, b = pair / heads, h = pair % heads;  // of key heads
    const int length = lengths[b * length_stride];
    const Queries queries{q + b * q_b + h * group * q_h, q_h, q_s, q_d, rows, seq, length - seq};
    const Pages pages{k + h * k_h, v + h * v_h, table + b * table_b, table_n, k_p, k_r, k_d, v_p, v_r, v_d, page};
    const int first = blockIdx.y * keys, last = min(first + keys, length), splits = gridDim.y;
    attend(
        queries, pages, parts, part_lse, (pair * rows + top) * splits + blockIdx.y, splits, top, first, last, dim,
        scale);
}
