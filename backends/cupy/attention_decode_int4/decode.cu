#include "splits.cuh"

constexpr int BYTES = 4; // of a row in each lane, which are 8 of 256 columns

// Codes (B, heads, seq, D/2), and a factor and a shift for each group of columns, (B, heads, seq, G, 2).
struct Cache {
    const unsigned char* codes;
    const ELEMENT* scales;
    long long codes_b, codes_h, codes_s, codes_d, scales_b, scales_h, scales_s, scales_g, scales_p;

    // Columns 2·byte and 2·byte + 1: the even one is the low nibble, and `group` columns share a factor and a shift.
    __device__ void elements(long long b, long long h, long long s, long long byte, int group, float (&x)[2]) const {
        const unsigned char both = codes[b * codes_b + h * codes_h + s * codes_s + byte * codes_d];
        const ELEMENT* row = scales + b * scales_b + h * scales_h + s * scales_s;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const ELEMENT* own = row + (2 * byte + half) / group * scales_g;
            x[half] = (half ? both >> 4 : both & 15) * to_float(own[0]) + to_float(own[scales_p]);
        }
    }
};

// A block for each row of the cache; those beyond a length are not written either.
extern "C" __global__ void dequantise(
    const unsigned char* codes, const ELEMENT* scales, const int* lengths, ELEMENT* x, long long codes_b,
    long long codes_h, long long codes_s, long long codes_d, long long scales_b, long long scales_h, long long scales_s,
    long long scales_g, long long scales_p, long long length_stride, int heads, int seq, int dim, int group) {
    const Cache cache = {
        codes, scales, codes_b, codes_h, codes_s, codes_d, scales_b, scales_h, scales_s, scales_g, scales_p};
    const long long row = blockIdx.x, b = row / ((long long)heads * seq), h = row / seq % heads, s = row % seq;
    if (s >= lengths[b * length_stride]) return;
    for (int byte = threadIdx.x; byte < dim / 2; byte += blockDim.x) {
        float both[2];
        cache.elements(b, h, s, byte, group, both);
        x[row * dim + 2 * byte] = from_float<ELEMENT>(both[0]);
        x[row * dim + 2 * byte + 1] = from_float<ELEMENT>(both[1]);
    }
}

// `keys` of the cache for each of gridDim.y parts; a warp for each query, of whose row a lane holds bytes lane, lane + 32 ...
extern "C" __global__ void attention_decode_int4_splitkv(
    const ELEMENT* q, const unsigned char* k_codes, const ELEMENT* k_scales, const unsigned char* v_codes,
    const ELEMENT* v_scales, const int* lengths, float* parts, float* part_lse, long long q_b, long long q_h,
    long long q_s, long long q_d, long long kc_b, long long kc_h, long long kc_s, long long kc_d, long long ks_b,
    long long ks_h, long long ks_s, long long ks_g, long long ks_p, long long vc_b, long long vc_h, long long vc_s,
    long long vc_d, long long vs_b, long long vs_h, long long vs_s, long long vs_g, long long vs_p,
    long long length_stride, float scale, int heads, int readers, int seq, int keys, int dim, int group) {
    const Cache k = {k_codes, k_scales, kc_b, kc_h, kc_s, kc_d, ks_b, ks_h, ks_s, ks_g, ks_p};
    const Cache v = {v_codes, v_scales, vc_b, vc_h, vc_s, vc_d, vs_b, vs_h, vs_s, vs_g, vs_p};
    const long long row = blockIdx.x, b = row / ((long long)heads * seq), h = row / seq % heads, i = row % seq;
    const long long reader = h / (heads / readers), first = (long long)blockIdx.y * keys;
    const long long seen = lengths[b * length_stride] - seq + i + 1, last = min(first + keys, seen);
    float held[BYTES][2], o[BYTES][2] = {}, pair[2];
#pragma unroll
    for (int r = 0; r < BYTES; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int d = 2 * (r * 32 + threadIdx.x) + half;
            held[r][half] = d < dim ? to_float(q[b * q_b + h * q_h + i * q_s + d * q_d]) : 0.0f;
        }
    Running running;
    for (long long j = first; j < last; ++j) {
        float dot = 0.0f;
#pragma unroll
        for (int r = 0; r < BYTES; ++r) {
            const int byte = r * 32 + threadIdx.x;
            if (byte >= dim / 2) continue;
            k.elements(b, reader, j, byte, group, pair);
            dot += held[r][0] * pair[0] + held[r][1] * pair[1];
        }
        const float s[1] = {warp_sum(dot) * scale}, before = running.m;
        fold(running, s);
        const float kept = expf(before - shift(running.m)), p = expf(s[0] - shift(running.m));
#pragma unroll
        for (int r = 0; r < BYTES; ++r) {
            const int byte = r * 32 + threadIdx.x;
            if (byte >= dim / 2) continue;
            v.elements(b, reader, j, byte, group, pair);
            o[r][0] = o[r][0] * kept + p * pair[0];
            o[r][1] = o[r][1] * kept + p * pair[1];
        }
    }
    const float inverse = running.l == 0.0f ? 0.0f : 1.0f / running.l;
    const long long place = row * gridDim.y + blockIdx.y;
#pragma unroll
    for (int r = 0; r < BYTES; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int d = 2 * (r * 32 + threadIdx.x) + half;
            if (d < dim) parts[place * dim + d] = o[r][half] * inverse;
        }
    if (threadIdx.x == 0) part_lse[place] = log_sum(running);
}

extern "C" __global__ void attention_decode_int4_merge(
    const float* parts, const float* part_lse, ELEMENT* o, float* lse, int splits, int dim) {
    merge_parts<8>(parts, part_lse, o, lse, splits, dim);
}
