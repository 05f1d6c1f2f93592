#include "splits.cuh"

constexpr int HELD = 8; // of D in each lane: 256 in all

// Elements of (B, heads, seq, D) with any strides.
struct Heads {
    const ELEMENT* first;
    long long b, h, s, d;
};

// One query over keys: o, not normalised, of which lane i holds i, i + 32, ...; the running maximum and sum.
struct Query {
    float o[HELD] = {};
    Running running;

    __device__ void attend(
        Heads q, Heads k, Heads v, const int* lengths, long long length_stride, long long row, long long first,
        long long keys, float scale, int heads, int group, int seq, int dim) {
        const long long b = row / ((long long)heads * seq), h = row / seq % heads, i = row % seq;
        const long long seen = lengths[b * length_stride] - seq + i + 1;
        const long long last = first + keys < seen ? first + keys : seen;
        const ELEMENT* query = q.first + b * q.b + h * q.h + i * q.s;
        const ELEMENT* key = k.first + b * k.b + h / group * k.h;
        const ELEMENT* value = v.first + b * v.b + h / group * v.h;
        float held[HELD];
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
            const int d = r * 32 + threadIdx.x;
            held[r] = d < dim ? to_float(query[d * q.d]) : 0.0f;
        }
        for (long long j = first; j < last; ++j) {
            float dot = 0.0f;
#pragma unroll
            for (int r = 0; r < HELD; ++r) {
                const int d = r * 32 + threadIdx.x;
                if (d < dim) dot += held[r] * to_float(key[j * k.s + d * k.d]);
            }
            const float s[1] = {warp_sum(dot) * scale}, before = running.m;
            fold(running, s);
            const float kept = expf(before - shift(running.m)), p = expf(s[0] - shift(running.m));
#pragma unroll
            for (int r = 0; r < HELD; ++r) {
                const int d = r * 32 + threadIdx.x;
                if (d < dim) o[r] = o[r] * kept + p * to_float(value[j * v.s + d * v.d]);
            }
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

extern "C" __global__ void attention_decode_naive(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* lengths, ELEMENT* o, float* lse, long long q_b,
    long long q_h, long long q_s, long long q_d, long long k_b, long long k_h, long long k_s, long long k_d,
    long long v_b, long long v_h, long long v_s, long long v_d, long long length_stride, float scale, int heads,
    int group, int seq, long long keys, int dim) {
    const long long row = blockIdx.x;
    Query query;
    query.attend(
        {q, q_b, q_h, q_s, q_d}, {k, k_b, k_h, k_s, k_d}, {v, v_b, v_h, v_s, v_d}, lengths, length_stride, row, 0, keys,
        scale, heads, group, seq, dim);
    query.write(o + row * dim, lse + row, dim);
}

// `keys` of the cache for each of gridDim.y parts.
extern "C" __global__ void attention_decode_splitkv(
    const ELEMENT* q, const ELEMENT* k, const ELEMENT* v, const int* lengths, float* parts, float* part_lse,
    long long q_b, long long q_h, long long q_s, long long q_d, long long k_b, long long k_h, long long k_s,
    long long k_d, long long v_b, long long v_h, long long v_s, long long v_d, long long length_stride, float scale,
    int heads, int group, int seq, long long keys, int dim) {
    const long long row = blockIdx.x, place = row * gridDim.y + blockIdx.y;
    Query query;
    query.attend(
        {q, q_b, q_h, q_s, q_d}, {k, k_b, k_h, k_s, k_d}, {v, v_b, v_h, v_s, v_d}, lengths, length_stride, row,
        blockIdx.y * keys, keys, scale, heads, group, seq, dim);
    query.write(parts + place * dim, part_lse + place, dim);
}

extern "C" __global__ void attention_decode_merge(
    const float* parts, const float* part_lse, ELEMENT* o, float* lse, int splits, int dim) {
    merge_parts<HELD>(parts, part_lse, o, lse, splits, dim);
}
