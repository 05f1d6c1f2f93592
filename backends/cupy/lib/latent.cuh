// Attention whose keys have two parts: one that may be the value as well, and a rotary part that all heads share.
#pragma once
#include "online.cuh"

constexpr int WARPS = 4, KEYS = 16;         // warps of a block, with a row each, and keys of a tile
constexpr int WIDEST = 576, HELD = WIDEST / 32; // columns of a key and a value of its own; those in each lane

// Elements of (B, heads, seq, dim) with any strides.
struct Heads {
    const ELEMENT* first;
    long long b, h, s, d;
};

// What a block works on: the rows of a key head are its `group` query heads' queries, `seq` of each.
struct Work {
    Heads q, r, k, t, v;   // q meets k, r meets t; v is k where it is `shared`
    int dim, rotary, dim_v; // columns of q and k, of r and t, of v and o
    bool shared, causal;
    int group, seq;
    float scale;
};

// A warp's row: o, not normalised, of which lane i holds i, i + 32, ...; the running maximum and sum.
struct Row {
    float o[HELD] = {}, q[HELD];
    Running running;

    // The keys first ... last - 1 of the `length` that are filled. Every warp of the block comes, with a row or not.
    __device__ void attend(const Work& at, long long b, int key_head, int row, int first, int last, int length) {
        __shared__ float tile[KEYS][WIDEST]; // k, t, and v where it is another
        const int lane = threadIdx.x % 32, i = row % at.seq, width = at.dim + at.rotary;
        const bool exists = row < at.group * at.seq;
        const int columns = at.shared ? width : width + at.dim_v, values = at.shared ? 0 : width;
        const long long head = (long long)key_head * at.group + row / at.seq;
        last = min(last, length);
        const int seen = at.causal ? min(last, i + length - at.seq + 1) : last;
#pragma unroll
        for (int n = 0; n < HELD; ++n) {
            const int d = n * 32 + lane;
            q[n] = !exists || d >= width ? 0.0f
                : d < at.dim             ? element(at.q, b, head, i, d)
                                         : element(at.r, b, head, i, d - at.dim);
        }
        for (int start = first; start < last; start += KEYS) {
            const int filled = min(KEYS, last - start);
            __syncthreads(); // the tile before is used
            for (int n = threadIdx.x; n < filled * columns; n += WARPS * 32) {
                const int j = n / columns, d = n % columns;
                tile[j][d] = d < at.dim ? element(at.k, b, key_head, start + j, d)
                    : d < width         ? element(at.t, b, 0, start + j, d - at.dim)
                                        : element(at.v, b, key_head, start + j, d - width);
            }
            __syncthreads(); // the tile is loaded
            const int mine = exists ? min(filled, seen - start) : 0;
            for (int j = 0; j < mine; ++j) fold_key(tile[j], tile[j] + values, width, at.dim_v, at.scale);
        }
    }

    __device__ void fold_key(const float* key, const float* value, int width, int dim_v, float scale) {
        const int lane = threadIdx.x % 32;
        float dot = 0.0f;
#pragma unroll
        for (int n = 0; n < HELD; ++n)
            if (n * 32 + lane < width) dot += q[n] * key[n * 32 + lane];
        const float s[1] = {warp_sum(dot) * scale}, before = running.m;
        fold(running, s);
        const float kept = expf(before - shift(running.m)), p = expf(s[0] - shift(running.m));
#pragma unroll
        for (int n = 0; n < HELD; ++n)
            if (n * 32 + lane < dim_v) o[n] = o[n] * kept + p * value[n * 32 + lane];
    }

    static __device__ float element(const Heads& x, long long b, long long h, long long s, long long d) {
        return to_float(x.first[b * x.b + h * x.h + s * x.s + d * x.d]);
    }

    template <typename Element> __device__ void write(Element* target, float* lse, int dim) const {
        const float inverse = running.l == 0.0f ? 0.0f : 1.0f / running.l;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < HELD; ++n)
            if (n * 32 + lane < dim) target[n * 32 + lane] = from_float<Element>(o[n] * inverse);
        if (lane == 0) *lse = log_sum(running);
    }
};
