#include "online.cuh"
#include "pointwise.cuh"

// A thread for each element of the result; one without columns still has its lse.
extern "C" __global__ void merge_states_naive(
    const ELEMENT* o, const float* lse, ELEMENT* merged, float* of_all, long long o_p, long long o_r, long long o_d,
    long long lse_p, long long lse_r, long long parts, long long rows, long long dim) {
    const long long columns = dim > 0 ? dim : 1;
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = at / columns, d = at % columns;
    if (row >= rows) return;
    Running running;
    float sum = 0.0f;
    for (long long p = 0; p < parts; ++p) {
        const float of_part[1] = {lse[p * lse_p + row * lse_r]}, before = running.m;
        fold(running, of_part);
        const float kept = expf(before - shift(running.m)), weight = expf(of_part[0] - shift(running.m));
        if (d < dim) sum = sum * kept + weight * to_float(o[p * o_p + row * o_r + d * o_d]);
    }
    if (d < dim) merged[row * dim + d] = from_float<ELEMENT>(running.l == 0.0f ? 0.0f : sum / running.l);
    if (d == 0) of_all[row] = log_sum(running);
}

// A warp for each row. Every lane has the same running maximum and sum after the shuffles.
extern "C" __global__ void merge_states_warp(
    const ELEMENT* o, const float* lse, ELEMENT* merged, float* of_all, long long o_p, long long o_r, long long o_d,
    long long lse_p, long long lse_r, long long parts, long long dim) {
    const long long row = blockIdx.x;
    o += row * o_r;
    lse += row * lse_r;
    Running running;
    for (long long p = threadIdx.x; p < parts; p += 32) {
        const float of_part[1] = {lse[p * lse_p]};
        fold(running, of_part);
    }
    running = warp_merge(running);
    const float m = shift(running.m), inverse = running.l == 0.0f ? 0.0f : 1.0f / running.l;
    for (long long d = threadIdx.x; d < dim; d += 32) {
        float sum = 0.0f;
        for (long long p = 0; p < parts; ++p) sum += expf(lse[p * lse_p] - m) * to_float(o[p * o_p + d * o_d]);
        merged[row * dim + d] = from_float<ELEMENT>(sum * inverse);
    }
    if (threadIdx.x == 0) of_all[row] = log_sum(running);
}

#ifdef WIDE
// A block is some threads to a row by some rows; a thread has 16 bytes of each part's row at a time. WIDE: at an address
// that is a multiple of 16 bytes, with neighbours in them.
extern "C" __global__ void merge_states_vectorised(
    const ELEMENT* o, const float* lse, ELEMENT* merged, float* of_all, long long o_p, long long o_r, long long o_d,
    long long lse_p, long long lse_r, long long parts, long long rows, long long dim) {
    constexpr int lanes = lanes_of<ELEMENT>;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    o += row * o_r;
    lse += row * lse_r;
    for (long long d = threadIdx.x * lanes; d == 0 || d < dim; d += blockDim.x * lanes) {
        const long long end = WIDE ? d + lanes : dim;
        float m = -INFINITY, base = 0.0f, l = 0.0f, sum[lanes] = {}, values[lanes];
        uint4 next = {};
        float next_lse = m;
        if (parts > 0) {
            next = load_line(o, o_d, d, end, WIDE);
            next_lse = lse[0];
        }
        for (long long p = 1; p <= parts; ++p) {
            unpack<ELEMENT>(next, values);
            const float of_part = next_lse;
            if (p < parts) {  // under way before this part's are wanted
                next = load_line(o + p * o_p, o_d, d, end, WIDE);
                next_lse = lse[p * lse_p];
            }
            const float above = fmaxf(m, of_part), new_base = shift(above);
            const float kept = m == -INFINITY ? 0.0f : __expf(base - new_base), weight = __expf(of_part - new_base);
            l = l * kept + weight;
#pragma unroll
            for (int i = 0; i < lanes; ++i) sum[i] = sum[i] * kept + weight * values[i];
            m = above;
            base = new_base;
        }
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
        for (int i = 0; i < lanes; ++i) sum[i] *= inverse;
        store_line(merged + row * dim, d, end, WIDE, sum);
        if (d == 0) of_all[row] = base + logf(l);
    }
}
#endif
