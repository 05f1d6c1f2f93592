// Pairs of dimensions of q (B, Hq, S, D) and k (B, Hkv, S, D) turned by their token's rows of cos and sin (P, half).
#include "common.cuh"

// Four axes of any strides; heads of which there are none.
struct Heads {
    const ELEMENT* values;
    long long batch, head, token, dim;
};

struct Tables {
    const void *cos, *sin, *positions;
    long long cos_row, cos_col, sin_row, sin_col, batch, token;
    bool wide, wide_positions;  // tables of float, not ELEMENT; positions of 64 bits, not 32
    bool vectors;               // rows of both tables are whole vectors of 16 bytes

    __device__ long long row(long long b, long long s) const {
        if (positions == nullptr) return s;
        const long long at = b * batch + s * token;
        return wide_positions ? static_cast<const long long*>(positions)[at] : static_cast<const int*>(positions)[at];
    }
    __device__ float value(const void* table, long long at) const {
        return wide ? static_cast<const float*>(table)[at] : to_float(static_cast<const ELEMENT*>(table)[at]);
    }
    // `length` of a row's neighbours from pair `pair` on.
    template <int length>
    __device__ void read(const void* table, long long row, long long col, int pair, float (&values)[length]) const {
        if (length > 1 && vectors && wide) {
#pragma unroll
            for (int i = 0; i < length; i += 4) {
                const float4 four = *reinterpret_cast<const float4*>(static_cast<const float*>(table) + row + pair + i);
                memcpy(values + i, &four, 16);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < length; ++i) values[i] = value(table, row + (pair + i) * col);
    }
    __device__ float c(long long row, int pair) const { return value(cos, row * cos_row + pair * cos_col); }
    __device__ float s(long long row, int pair) const { return value(sin, row * sin_row + pair * sin_col); }
};

// A thread an element, which reads its partner too.
extern "C" __global__ void rope_naive(
    const ELEMENT* x, long long batch, long long head, long long token, long long dim, ELEMENT* y,
    const void* cos, long long cos_row, long long cos_col, const void* sin, long long sin_row, long long sin_col,
    const void* positions, long long p_batch, long long p_token, bool wide, bool wide_positions,
    long long count, int heads, long long tokens, int dims, int half, bool interleaved, float turn) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const Tables tables{cos, sin, positions, cos_row, cos_col, sin_row, sin_col, p_batch, p_token, wide, wide_positions, false};
    const int d = index % dims;
    const long long s = index / dims % tokens, bh = index / dims / tokens;
    x += bh / heads * batch + bh % heads * head + s * token;
    if (d >= 2 * half) {
        y[index] = x[d * dim];
        return;
    }
    const bool first = interleaved ? d % 2 == 0 : d < half;
    const int pair = interleaved ? d / 2 : d % half, partner = d + (first ? 1 : -1) * (interleaved ? 1 : half);
    const long long row = tables.row(bh / heads, s);
    const float sine = (first ? -turn : turn) * tables.s(row, pair);
    y[index] = from_float<ELEMENT>(to_float(x[d * dim]) * tables.c(row, pair) + to_float(x[partner * dim]) * sine);
}

// `length` elements: one of any stride, or 16 bytes of neighbours.
template <int length> __device__ inline void get(const ELEMENT* from, ELEMENT (&values)[length]) {
    if constexpr (length == 1) values[0] = *from;
    else *reinterpret_cast<uint4*>(values) = *reinterpret_cast<const uint4*>(from);
}

template <int length> __device__ inline void put(ELEMENT* to, const ELEMENT (&values)[length]) {
    if constexpr (length == 1) *to = values[0];
    else *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
}

// `length` pairs of a head, or as many dimensions that belong to none: unit `unit` of half / length + rest / length.
template <int length>
__device__ inline void unit_of_head(
    const ELEMENT* x, long long dim, ELEMENT* y, const Tables& tables, long long row, int unit, int half,
    bool interleaved, float turn) {
    __align__(16) ELEMENT one[length], other[length];
    const int pair = unit * length;
    if (pair >= half) {
        get(x + (pair + half) * dim, one);
        put(y + pair + half, one);
        return;
    }
    const int first = interleaved ? 2 * pair : pair, second = first + (interleaved ? length : half);
    get(x + first * dim, one);
    get(x + second * dim, other);
    float c[length], s[length];
    tables.read(tables.cos, row * tables.cos_row, tables.cos_col, pair, c);
    tables.read(tables.sin, row * tables.sin_row, tables.sin_col, pair, s);
#pragma unroll
    for (int i = 0; i < length; ++i) {
        // Side by side, the pairs are neighbours: half of them in one vector, half in the other.
        ELEMENT& a = !interleaved ? one[i] : 2 * i < length ? one[2 * i % length] : other[2 * i % length];
        ELEMENT& b = !interleaved ? other[i] : 2 * i + 1 < length ? one[(2 * i + 1) % length] : other[(2 * i + 1) % length];
        const float left = to_float(a), right = to_float(b), sine = turn * s[i];
        a = from_float<ELEMENT>(left * c[i] - right * sine);
        b = from_float<ELEMENT>(right * c[i] + left * sine);
    }
    put(y + first, one);
    put(y + second, other);
}

// A thread a pair, or 16 bytes of both of its sides where `vectors`; the heads of q, then those of k.
extern "C" __global__ void rope_pairs(
    const ELEMENT* q, long long q_batch, long long q_head, long long q_token, long long q_dim, ELEMENT* q_out,
    const ELEMENT* k, long long k_batch, long long k_head, long long k_token, long long k_dim, ELEMENT* k_out,
    const void* cos, long long cos_row, long long cos_col, const void* sin, long long sin_row, long long sin_col,
    const void* positions, long long p_batch, long long p_token, bool wide, bool wide_positions,
    long long count, int q_heads, int k_heads, long long tokens, int dims, int half, bool interleaved, float turn,
    bool vectors, bool vector_tables) {
    const long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const Tables tables{cos, sin, positions, cos_row, cos_col, sin_row, sin_col, p_batch, p_token, wide, wide_positions, vector_tables};
    const int units = (dims - half) / (vectors ? lanes_of<ELEMENT> : 1), unit = index % units;
    const long long s = index / units % tokens, bh = index / units / tokens;
    const int heads = q_heads + k_heads, h = bh % heads;
    const long long b = bh / heads, row = tables.row(b, s);
    const bool is_q = h < q_heads;
    const ELEMENT* x = is_q ? q + b * q_batch + h * q_head + s * q_token
                            : k + b * k_batch + (h - q_heads) * k_head + s * k_token;
    ELEMENT* y = is_q ? q_out + ((b * q_heads + h) * tokens + s) * dims
                      : k_out + ((b * k_heads + h - q_heads) * tokens + s) * dims;
    const long long dim = is_q ? q_dim : k_dim;
    if (vectors) unit_of_head<lanes_of<ELEMENT>>(x, dim, y, tables, row, unit, half, interleaved, turn);
    else unit_of_head<1>(x, dim, y, tables, row, unit, half, interleaved, turn);
}
