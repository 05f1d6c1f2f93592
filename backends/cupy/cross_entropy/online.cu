#include "entropy.cuh"

// (m, l) of a thread's columns and the sum of their logits, which is wanted where there is `smoothing`.
__device__ void one_by_one(
    const ELEMENT* __restrict__ z, long long V, long long z_col, bool smoothing, Running& running, float& total) {
    for (long long col = threadIdx.x; col < V; col += blockDim.x) {
        const float values[1] = {to_float(z[col * z_col])};
        fold(running, values);
        if (smoothing) total += values[0];
    }
}

// The same 16 bytes at a time. Of the columns whose loads are under way together the maximum comes first: so the sum is
// rescaled once for all of them. __expf is off by 2^-23 for each unit of its argument, which counts little where the
// exponential is far below 1.
__device__ void in_vectors(
    const ELEMENT* __restrict__ z, long long V, bool smoothing, Running& running, float& total) {
    constexpr int ahead = 4, length = lanes_of<ELEMENT>;
    const long long step = blockDim.x * length;
    for (long long start = threadIdx.x * length; start < V; start += ahead * step) {
        uint4 held[ahead];  // packed: half the registers
        float values[length], m = running.m, l = 0.0f;
#pragma unroll
        for (int i = 0; i < ahead; ++i)
            if (start + i * step < V) held[i] = *reinterpret_cast<const uint4*>(z + start + i * step);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            if (start + i * step >= V) continue;
            unpack<ELEMENT>(held[i], values);
#pragma unroll
            for (int j = 0; j < length; ++j) m = fmaxf(m, values[j]);
        }
        const float base = shift(m);
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            if (start + i * step >= V) continue;
            unpack<ELEMENT>(held[i], values);
#pragma unroll
            for (int j = 0; j < length; ++j) l += __expf(values[j] - base);
            if (!smoothing) continue;
#pragma unroll
            for (int j = 0; j < length; ++j) total += values[j];
        }
        running.l = running.l * __expf(running.m - base) + l;
        running.m = m;
    }
}

extern "C" __global__ void __launch_bounds__(512, 4) cross_entropy_online(
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
    if (vectors) in_vectors(z, V, smoothing > 0.0f, running, total);
    else one_by_one(z, V, z_col, smoothing > 0.0f, running, total);
    running = block_merge(running);
    total = block_sum(total);
    if (threadIdx.x == 0) losses[row] = loss_of(log_sum(running), total, z, z_col, y, V, smoothing, z_loss);
}
