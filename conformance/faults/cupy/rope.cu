// A block a head of q or k, which it keeps in shared memory; a thread an element.
#include "common.cuh"

enum Fault {
    none,
    no_barrier,
    partner_of_whole_head,
    rest_unwritten,
    sine_of_first_side,
    stride_of_table_ignored,
    heads_of_q,
    positions_without_stride,
};

extern "C" __global__ void rope_staged(
    const ELEMENT* x, long long batch, long long head, long long token, long long dim, ELEMENT* y,
    const void* cos, long long cos_row, long long cos_col, const void* sin, long long sin_row, long long sin_col,
    const void* positions, long long p_batch, long long p_token, bool wide, bool wide_positions, int heads,
    int q_heads, int tokens, int dims, int half, bool interleaved, int fault) {
    extern __shared__ float values[];
    const int d = threadIdx.x, s = blockIdx.x % tokens, bh = blockIdx.x / tokens;
    if (fault == heads_of_q) heads = q_heads;
    const long long b = bh / heads, h = bh % heads;
    if (d < dims) values[d] = to_float(x[b * batch + h * head + s * token + d * dim]);
    if (fault != no_barrier) __syncthreads();
    if (d >= dims) return;

    y += (long long)blockIdx.x / tokens * tokens * dims + (long long)s * dims;
    if (d >= 2 * half) {
        if (fault != rest_unwritten) y[d] = from_float<ELEMENT>(values[d]);
        return;
    }
    long long row = s;
    if (positions != nullptr) {
        const long long at = fault == positions_without_stride ? b * tokens + s : b * p_batch + s * p_token;
        row = wide_positions ? static_cast<const long long*>(positions)[at] : static_cast<const int*>(positions)[at];
    }
    if (fault == stride_of_table_ignored) sin_col = 1;
    const int apart = fault == partner_of_whole_head ? dims / 2 : half;
    const bool first = interleaved ? d % 2 == 0 : d < half;
    const int pair = interleaved ? d / 2 : d % half, partner = d + (first ? 1 : -1) * (interleaved ? 1 : apart);
    const long long c_at = row * cos_row + pair * cos_col, s_at = row * sin_row + pair * sin_col;
    const float c = wide ? static_cast<const float*>(cos)[c_at] : to_float(static_cast<const ELEMENT*>(cos)[c_at]);
    float sine = wide ? static_cast<const float*>(sin)[s_at] : to_float(static_cast<const ELEMENT*>(sin)[s_at]);
    if (first || fault == sine_of_first_side) sine = -sine;
    y[d] = from_float<ELEMENT>(values[d] * c + values[(partner + dims) % dims] * sine);
}
