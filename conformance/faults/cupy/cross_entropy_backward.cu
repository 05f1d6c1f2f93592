#include "common.cuh"

enum Fault {
    none,
    first_dloss,
    ignored_row_unwritten,
    strides_of_dloss,
    every_row_counts,
};

// A block for each row; lse is given. `count`: the number of rows that are not ignored.
extern "C" __global__ void cross_entropy_backward_rows(
    const ELEMENT* z, ELEMENT* dz, int V, long long z_row, long long z_col, const float* lse, long long lse_row,
    const float* dloss, long long dloss_row, const float* count, const int* target, long long stride,
    int ignore_index, float smoothing, float z_loss, int fault) {
    const long long row = blockIdx.x;
    const int y = target[row * stride];
    z += row * z_row;
    dz += row * V;
    long long at = row * dloss_row;
    if (fault == first_dloss) at = 0;
    if (fault == strides_of_dloss && dloss_row > 1) at = row;
    const float g = dloss[at] / *count, total = lse[row * lse_row];
    for (int col = threadIdx.x; col < V; col += blockDim.x) {
        if (y == ignore_index) {
            if (fault != ignored_row_unwritten) dz[col] = from_float<ELEMENT>(0.0f);
        } else {
            const float p = expf(to_float(z[col * z_col]) - total), picked = col == y ? 1.0f - smoothing : 0.0f;
            dz[col] = from_float<ELEMENT>(((1.0f + 2.0f * z_loss * total) * p - picked - smoothing / V) * g);
        }
    }
}

// lse of a row, by one thread.
extern "C" __global__ void cross_entropy_backward_lse(
    const ELEMENT* z, float* lse, int V, long long z_row, long long z_col, int fault) {
    z += blockIdx.x * z_row;
    float m = -INFINITY, l = 0.0f;
    for (int col = 0; col < V; ++col) m = fmaxf(m, to_float(z[col * z_col]));
    for (int col = 0; col < V; ++col) l += expf(to_float(z[col * z_col]) - m);
    lse[blockIdx.x] = m + logf(l);
}

// One warp counts the rows that are not ignored; without a mean there is one.
extern "C" __global__ void cross_entropy_backward_count(
    float* count, int rows, const int* target, long long stride, int ignore_index, int mean, int fault) {
    float kept = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 32)
        kept += fault == every_row_counts || target[row * stride] != ignore_index;
    kept = warp_sum(kept);
    if (threadIdx.x == 0) *count = mean ? kept : 1.0f;
}
