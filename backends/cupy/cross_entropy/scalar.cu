#include "entropy.cuh"

extern "C" __global__ void cross_entropy_naive(
    const ELEMENT* z, float* losses, long long rows, long long V, long long z_row, long long z_col, const void* target,
    long long stride, int wide, long long ignore_index, float smoothing, float z_loss) {
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const long long y = Targets{target, stride, wide}[row];
    if (y == ignore_index) {
        losses[row] = 0.0f;
        return;
    }
    z += row * z_row;
    float m = -INFINITY, total = 0.0f;
    for (long long col = 0; col < V; ++col) {
        const float value = to_float(z[col * z_col]);
        m = fmaxf(m, value);
        total += value;
    }
    // fmaxf drops a NaN and exp does not: a NaN and a row of -inf reach the sum as NaN.
    float l = 0.0f;
    for (long long col = 0; col < V; ++col) l += expf(to_float(z[col * z_col]) - m);
    losses[row] = loss_of(m + logf(l), total, z, z_col, y, V, smoothing, z_loss);
}

// A block is 32 lanes by some rows.
extern "C" __global__ void cross_entropy_warp(
    const ELEMENT* z, float* losses, long long rows, long long V, long long z_row, long long z_col, const void* target,
    long long stride, int wide, long long ignore_index, float smoothing, float z_loss) {
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return; // a whole warp
    const long long y = Targets{target, stride, wide}[row];
    if (y == ignore_index) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        return; // a whole warp too
    }
    z += row * z_row;
    Running running;
    float total = 0.0f;
    for (long long col = threadIdx.x; col < V; col += 32) {
        const float values[1] = {to_float(z[col * z_col])};
        fold(running, values);
        total += values[0];
    }
    running = warp_merge(running);
    total = warp_sum(total);
    if (threadIdx.x == 0) losses[row] = loss_of(log_sum(running), total, z, z_col, y, V, smoothing, z_loss);
}

// One block: the sum of all losses, by the number of rows that are not ignored if `mean`; NaN where there are none.
extern "C" __global__ void cross_entropy_reduce(
    const float* losses, float* loss, long long rows, const void* target, long long stride, int wide,
    long long ignore_index, int mean) {
    const Targets targets{target, stride, wide};
    float total = 0.0f, kept = 0.0f;
    for (long long row = threadIdx.x; row < rows; row += blockDim.x) {
        total += losses[row];
        kept += targets[row] != ignore_index;
    }
    total = block_sum(total);
    kept = block_sum(kept);
    if (threadIdx.x == 0) *loss = mean ? total / kept : total;
}
