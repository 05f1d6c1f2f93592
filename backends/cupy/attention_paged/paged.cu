#include "splits.cuh"

constexpr int HELD = 8; // of D in each lane: 256 in all

// Elements of (B, heads, seq, D) with any strides.
struct Heads {
    const ELEMENT* first;
    long long b, h, s, d;
};

// Elements of (P, page, heads, D) with any strides.
struct Cache {
    const ELEMENT* first;
    long long p, r, h, d;

    __device__ const ELEMENT* key(long long held, long long row, long long head) const {
        return first + held * p + row * r + head * h;
    }
};

// The pages of the sequences, (B, n), and the sequences' lengths, (B,).
struct Table {
    const int *pages, *lengths;
    long long b, n, length;
};

// One query over keys: o, not normalised, of which lane i holds i, i + 32, ...; the running maximum and sum.
struct Query {
    float o[HELD] = {};
    Running running;

    __device__ void fold_in(float s, const ELEMENT* value, long long stride, int dim) {
        const float values[1] = {s}, before = running.m;
        fold(running, values);
        const float kept = expf(before - shift(running.m)), p = expf(s - shift(running.m));
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            const int d = r * 32 + threadIdx.x;
            if (d < dim) o[r] = o[r] * kept + p * to_float(value[d * stride]);
        }
    }

    __device__ void attend(
        Heads q, Cache k, Cache v, Table table, long long row, long long first, long long keys, float scale, int heads,
        int group, int seq, int dim, int page) {
        const long long b = row / ((long long)heads * seq), h = row / seq % heads, i = row % seq;
        const long long seen = table.lengths[b * table.length] - seq + i + 1;
        const long long last = first + keys < seen ? first + keys : seen;
        const ELEMENT* query = q.first + b * q.b + h * q.h + i * q.s;
        const int* pages = table.pages + b * table.b;
        float own[HELD];
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            const int d = r * 32 + threadIdx.x;
            own[r] = d < dim ? to_float(query[d * q.d]) : 0.0f;
        }
        for (long long j = first; j < last; ++j) {
            const long long held = pages[j / page * table.n];
            const ELEMENT* key = k.key(held, j % page, h / group);
            float dot = 0.0f;
#pragma unroll
            for (int r = 0; r < HELD; ++r) {
                const int d = r * 32 + threadIdx.x;
                if (d < dim) dot += own[r] * to_float(key[d * k.d]);
            }
            fold_in(warp_sum(dot) * scale, v.key(held, j % page, h / group), v.d, dim);
        }
    }

    template <typename Element> __device__ void write(Element* target, float* lse, int dim) const {
        const float inverse = running.l == 0.0f ? 0.0f : 1.0f / running.l;
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            const int d = r * 32 + threadIdx.x;
            if (d < dim) target[d] = from_float<Element>(o[r] * inverse);
        }
        if (threadIdx.x == 0) *lse = log_sum(running);
    }
};

extern "C" __global__ void attention_paged_naive(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* pages, const int* lengths, ELEMENT* o, float* lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long k_p, long long k_r, long long k_h,
    long long k_d, long long v_p, long long v_r, long long v_h, long long v_d, long long table_b, long long table_n,
    long long length_stride, float scale, int heads, int group, int seq, int dim, int page, long long keys) {
    const long long row = blockIdx.x;
    Query query;
    query.attend(
        {q, q_b, q_h, q_s, q_d}, {k, k_p, k_r, k_h, k_d}, {v, v_p, v_r, v_h, v_d},
        {pages, lengths, table_b, table_n, length_stride}, row, 0, keys, scale, heads, group, seq, dim, page);
    query.write(o + row * dim, lse + row, dim);
}

// `keys` of the sequences for each of gridDim.y parts.
extern "C" __global__ void attention_paged_splitkv(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* pages, const int* lengths, float* parts,
    float* part_lse, long long q_b, long long q_h, long long q_s, long long q_d, long long k_p, long long k_r,
    long long k_h, long long k_d, long long v_p, long long v_r, long long v_h, long long v_d, long long table_b,
    long long table_n, long long length_stride, float scale, int heads, int group, int seq, int dim, int page,
    long long keys) {
    const long long row = blockIdx.x, place = row * gridDim.y + blockIdx.y;
    Query query;
    query.attend(
        {q, q_b, q_h, q_s, q_d}, {k, k_p, k_r, k_h, k_d}, {v, v_p, v_r, v_h, v_d},
        {pages, lengths, table_b, table_n, length_stride}, row, blockIdx.y * keys, keys, scale, heads, group, seq, dim,
        page);
    query.write(parts + place * dim, part_lse + place, dim);
}

extern "C" __global__ void attention_paged_merge(
    const float* parts, const float* part_lse, ELEMENT* o, float* lse, int splits, int dim) {
    merge_parts<HELD>(parts, part_lse, o, lse, splits, dim);
}
