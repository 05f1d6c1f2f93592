#include "entropy.cuh"

extern "C" __global__ void cross_entropy_backward_block(
    const ELEMENT* z, ELEMENT* dz, long long V, long long z_row, long long z_col, const float* lse, long long lse_row,
    const float* g, long long g_row, const void* target, long long stride, int wide, long long ignore_index,
    float smoothing, float z_loss) {
    const long long row = blockIdx.x, y = Targets{target, stride, wide}[row];
    z += row * z_row;
    dz += row * V;
    if (y == ignore_index) {
        for (long long col = threadIdx.x; col < V; col += blockDim.x) dz[col] = from_float<ELEMENT>(0.0f);
        return; // the whole block
    }
    float of_row;
    if (lse) {
        of_row = lse[row * lse_row];
    } else {
        Running running;
        for (long long col = threadIdx.x; col < V; col += blockDim.x) {
            const float values[1] = {to_float(z[col * z_col])};
            fold(running, values);
        }
        of_row = log_sum(block_merge(running));
    }
    const Gradient gradient{of_row, 1.0f + 2.0f * z_loss * of_row, smoothing / V, g[row * g_row], smoothing, y};
    for (long long col = threadIdx.x; col < V; col += blockDim.x)
        dz[col] = from_float<ELEMENT>(gradient(to_float(z[col * z_col]), col));
}

// One block: dloss by the number of rows that are not ignored.
extern "C" __global__ void cross_entropy_backward_scale(
    const float* dloss, float* g, long long rows, const void* target, long long stride, int wide,
    long long ignore_index) {
    const Targets targets{target, stride, wide};
    float kept = 0.0f;
    for (long long row = threadIdx.x; row < rows; row += blockDim.x) kept += targets[row] != ignore_index;
    kept = block_sum(kept);
    if (threadIdx.x == 0) *g = *dloss / kept;
}
