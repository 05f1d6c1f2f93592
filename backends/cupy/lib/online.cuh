// The running maximum m of a row and the sum l of exp(x - m), from one pass over x.
#pragma once
#include "common.cuh"

struct Running {
    float m = -INFINITY, l = 0.0f;
};

// x - m is NaN where both are infinite: leading columns of -inf would poison l, a +inf would make its lse NaN.
// So l is the sum of exp(x - shift(m)).
__device__ inline float shift(float m) { return fabsf(m) == INFINITY ? 0.0f : m; }

// fmaxf drops a NaN; it reaches l.
template <int count> __device__ inline void fold(Running& running, const float (&values)[count]) {
    float m = running.m;
#pragma unroll
    for (int i = 0; i < count; ++i) m = fmaxf(m, values[i]);
    float l = running.l * expf(running.m - shift(m));
#pragma unroll
    for (int i = 0; i < count; ++i) l += expf(values[i] - shift(m));
    running.m = m;
    running.l = l;
}

__device__ inline Running merge(Running a, Running b) {
    Running both;
    both.m = fmaxf(a.m, b.m);
    both.l = a.l * expf(a.m - shift(both.m)) + b.l * expf(b.m - shift(both.m));
    return both;
}

__device__ inline Running warp_merge(Running running) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        Running other;
        other.m = __shfl_xor_sync(all_lanes, running.m, step);
        other.l = __shfl_xor_sync(all_lanes, running.l, step);
        running = merge(running, other);
    }
    return running;
}

// Called once in a kernel: nothing keeps a second call from writing `partials` too early.
__device__ inline Running block_merge(Running running) {
    __shared__ float maxima[32];
    __shared__ float sums[32];
    running = warp_merge(running);
    if (threadIdx.x % 32 == 0) {
        maxima[threadIdx.x / 32] = running.m;
        sums[threadIdx.x / 32] = running.l;
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const bool there = lane < blockDim.x / 32;
    running.m = there ? maxima[lane] : -INFINITY;
    running.l = there ? sums[lane] : 0.0f;
    return warp_merge(running);
}

// torch.softmax of a row with +inf is NaN; of a row of -inf it is 0 / 0, which is NaN without help.
__device__ inline float denominator(Running running) {
    return running.m == INFINITY ? __int_as_float(0x7fc00000) : running.l;
}

__device__ inline float log_sum(Running running) { return shift(running.m) + logf(running.l); }
