// delta = Σ do * o and lse * log2 e, one warp per query; lse is +inf for a query that sees nothing: its p is 0.
#include "common.cuh"

extern "C" __global__ void attention_delta(
    const ELEMENT* o, long long o_batch, long long o_head, long long o_row, long long o_col,
    const float* lse, long long lse_batch, long long lse_head, long long lse_row,
    const ELEMENT* grad, long long do_batch, long long do_head, long long do_row, long long do_col,
    float* delta, float* lse2, long long rows, int heads, int Sq, int dim) {
    const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const long long batch = row / Sq / heads, head = row / Sq % heads, i = row % Sq;
    o += batch * o_batch + head * o_head + i * o_row;
    grad += batch * do_batch + head * do_head + i * do_row;
    float sum = 0.0f;
    for (int d = threadIdx.x % 32; d < dim; d += 32) sum += to_float(grad[d * do_col]) * to_float(o[d * o_col]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        const float value = lse[batch * lse_batch + head * lse_head + i * lse_row];
        delta[row] = sum;
        lse2[row] = value == -INFINITY ? INFINITY : value * 1.4426950408889634f;
    }
}
