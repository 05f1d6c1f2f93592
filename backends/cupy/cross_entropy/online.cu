#include "entropy.cuh"
#include "rows.cuh"

// (m, l) of a thread's columns and the sum of their logits, which is wanted where there is `smoothing`. Of the columns
// whose loads are under way together the maximum comes first: so the sum is rescaled once for all of them. __expf is off
// by 2^-23 for each unit of its argument, which counts little where the exponential is far below 1.
template <int length>
__device__ void online_row(
    const ELEMENT* __restrict__ z, long long V, long long z_col, bool smoothing, Running& running, float& total) {
    constexpr int ahead = 4; // loads on their way before the first is used
    const long long step = blockDim.x * length;
    float values[ahead][length];
    for (long long start = threadIdx.x * length; start < V; start += ahead * step) {
        float m = running.m, l = 0.0f;
#pragma unroll
        for (int i = 0; i < ahead; ++i) load_or(-INFINITY, z, z_col, start + i * step, V, values[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
#pragma unroll
            for (int j = 0; j < length; ++j) m = fmaxf(m, values[i][j]);
        }
        const float base = shift(m);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
#pragma unroll
            for (int j = 0; j < length; ++j) l += __expf(values[i][j] - base);
            if (!smoothing || start + i * step >= V) continue;
#pragma unroll
            for (int j = 0; j < length; ++j) total += values[i][j];
        }
        running.l = running.l * __expf(running.m - base) + l;
        running.m = m;
    }
}

extern "C" __global__ void cross_entropy_online(
    const ELEMENT* __restrict__ z, float* __restrict__ losses, long long V, long long z_row, long long z_col, int vectors,
    const void* target, long long stride, int wide, long long ignore_index, float smoothing, float z_loss) {
    const long long row = blockIdx.x, y = Targets{target, stride, wide}[row];
    if (y == ignore_index) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        return; // the whole block
    }
    z += row * z_row;
    Running running;
    float total = 0.0f;
    if (vectors)
        online_row<lanes_of<ELEMENT>>(z, V, z_col, smoothing > 0.0f, running, total);
    else
        online_row<1>(z, V, z_col, smoothing > 0.0f, running, total);
    running = block_merge(running);
    total = block_sum(total);
    if (threadIdx.x == 0) losses[row] = loss_of(log_sum(running), total, z, z_col, y, V, smoothing, z_loss);
}
