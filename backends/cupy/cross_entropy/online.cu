#include "entropy.cuh"

// (m, l) of a thread's columns and the sum of their logits, which is wanted where there is `smoothing`. Eight loads are
// under way together.
__device__ void one_by_one(
    const ELEMENT* __restrict__ z, long long V, long long z_col, bool smoothing, Running& running, float& total) {
    constexpr int ahead = 8;
    for (long long start = threadIdx.x; start < V; start += ahead * blockDim.x) {
        float values[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) {
            const long long col = start + i * blockDim.x;
            values[i] = col < V ? to_float(z[col * z_col]) : -INFINITY;
        }
        fold(running, values);
        if (!smoothing) continue;
#pragma unroll
        for (int i = 0; i < ahead; ++i)
            if (start + i * blockDim.x < V) total += values[i];
    }
}

// The larger of each two elements, while they are packed; a NaN is dropped, as by fmaxf.
__device__ inline unsigned larger(unsigned a, unsigned b, float) {
    return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
}

template <typename Pair> __device__ inline unsigned larger_pair(unsigned a, unsigned b) {
    Pair x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    x = __hmax2(x, y);
    memcpy(&a, &x, 4);
    return a;
}

__device__ inline unsigned larger(unsigned a, unsigned b, __half) { return larger_pair<__half2>(a, b); }
__device__ inline unsigned larger(unsigned a, unsigned b, __nv_bfloat16) { return larger_pair<__nv_bfloat162>(a, b); }

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
        uint4 top = held[0];
#pragma unroll
        for (int i = 1; i < ahead; ++i) {
            if (start + i * step >= V) continue;
            top.x = larger(top.x, held[i].x, ELEMENT());
            top.y = larger(top.y, held[i].y, ELEMENT());
            top.z = larger(top.z, held[i].z, ELEMENT());
            top.w = larger(top.w, held[i].w, ELEMENT());
        }
        unpack<ELEMENT>(top, values);
#pragma unroll
        for (int j = 0; j < length; ++j) m = fmaxf(m, values[j]);
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
    const ELEMENT* __restrict__ z, float* __restrict__ losses, long long V, long long z_row, long long z_col,
    const void* target, long long stride, int wide, long long ignore_index, float smoothing, float z_loss) {
    const long long row = blockIdx.x, y = Targets{target, stride, wide}[row];
    if (y == ignore_index) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        return; // the whole block
    }
    z += row * z_row;
    Running running;
    float total = 0.0f;
    if (z_col == 1) {
        const Pieces pieces(z, V);
        if (const long long edge = pieces.edge(V); edge < V) {
            const float values[1] = {to_float(z[edge])};
            fold(running, values);
            total += values[0];
        }
        in_vectors(z + pieces.head, pieces.body, smoothing > 0.0f, running, total);
    } else {
        one_by_one(z, V, z_col, smoothing > 0.0f, running, total);
    }
    running = block_merge(running);
    if (smoothing > 0.0f) total = block_sum(total);
    if (threadIdx.x == 0) losses[row] = loss_of(log_sum(running), total, z, z_col, y, V, smoothing, z_loss);
}
