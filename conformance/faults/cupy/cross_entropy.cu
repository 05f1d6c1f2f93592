#include "common.cuh"

enum Fault {
    none,
    not_rescaled,
    merge_not_rescaled,
    counts_all_rows,
    strides_of_the_target,
    ignored_row_unwritten,
    no_barrier_before_sums,
};

// m is the maximum and l the sum of exp(z - m) of a thread's classes, then of a warp's, then of the row's.
extern "C" __global__ void cross_entropy_rows(
    const ELEMENT* z, float* losses, int V, long long z_row, long long z_col, const int* target, long long stride,
    int ignore_index, float smoothing, float z_loss, int fault) {
    __shared__ float maxima[4], sums[4], totals[4];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const long long row = blockIdx.x, at = fault == strides_of_the_target ? row : row * stride;
    const int y = target[at];
    if (y == ignore_index) {
        if (threadIdx.x == 0 && fault != ignored_row_unwritten) losses[row] = 0.0f;
        return;
    }
    z += row * z_row;
    float m = -3e38f, l = 0.0f, total = 0.0f;
    for (int col = threadIdx.x; col < V; col += blockDim.x) {
        const float value = to_float(z[col * z_col]), larger = fmaxf(m, value);
        if (fault != not_rescaled) l *= expf(m - larger);
        l += expf(value - larger);
        m = larger;
        total += value;
    }
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(all_lanes, m, step), sum = __shfl_xor_sync(all_lanes, l, step);
        const float larger = fmaxf(m, other);
        l = fault == merge_not_rescaled ? l + sum : l * expf(m - larger) + sum * expf(other - larger);
        m = larger;
    }
    total = warp_sum(total);
    if (lane == 0) maxima[warp] = m, sums[warp] = l, totals[warp] = total;
    if (fault != no_barrier_before_sums) __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < blockDim.x / 32; ++i) {
        const float larger = fmaxf(m, maxima[i]);
        l = l * expf(m - larger) + sums[i] * expf(maxima[i] - larger);
        m = larger;
        total += totals[i];
    }
    const float lse = m + logf(l);
    const float smooth = smoothing > 0.0f ? smoothing * (lse - total / V) : 0.0f;
    losses[row] = (1.0f - smoothing) * (lse - to_float(z[y * z_col])) + smooth + z_loss * lse * lse;
}

// One warp adds the losses up.
extern "C" __global__ void cross_entropy_total(
    const float* losses, float* loss, int rows, const int* target, long long stride, int ignore_index, int mean,
    int fault) {
    float total = 0.0f, kept = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 32) {
        total += losses[row];
        kept += fault == counts_all_rows || target[row * stride] != ignore_index;
    }
    total = warp_sum(total);
    kept = warp_sum(kept);
    if (threadIdx.x == 0) *loss = mean ? total / kept : total;
}
