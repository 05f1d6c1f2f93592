// delta = Σ do * o and lse * log2 e, one warp per query and head, whatever its sequence; lse is +inf for a query that
// sees nothing: its p is 0.
#include "common.cuh"

extern "C" __global__ void attention_varlen_delta(
    const ELEMENT* o, long long o_row, long long o_head, long long o_col,
    const float* lse, long long lse_head, long long lse_row,
    const ELEMENT* grad, long long do_row, long long do_head, long long do_col,
    float* delta, float* lse2, int Tq, int Hq, int dim) {
    const long long place = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;  // (head, row)
    if (place >= (long long)Hq * Tq) return;
    const long long head = place / Tq, row = place % Tq;
    o += row * o_row + head * o_head;
    grad += row * do_row + head * do_head;
    float sum = 0.0f;
    for (int d = threadIdx.x % 32; d < dim; d += 32) sum += to_float(grad[d * do_col]) * to_float(o[d * o_col]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        const float value = lse[head * lse_head + row * lse_row];
        delta[place] = sum;
        lse2[place] = value == -INFINITY ? INFINITY : value * 1.4426950408889634f;
    }
}
