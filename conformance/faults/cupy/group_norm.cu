#include "common.cuh"

enum Fault {
    none,
    totals_not_zeroed,
    no_barrier_after_zero,
    totals_without_atomic,
    every_lane_adds,
    no_barrier_before_mean,
    barrier_in_loop,
    one_pass,
    channel_within_group,
    load_unguarded,
    ballot_of_some,
};

// One block per group; its warps add to totals in shared memory.
extern "C" __global__ void group_norm_totals(const ELEMENT* x, const ELEMENT* weight, const ELEMENT* bias, ELEMENT* y,
                                             int groups, int channels, int space, long long x_n, long long x_c,
                                             long long x_s, long long w_c, long long b_c, float eps, int fault) {
    __shared__ float sum;
    __shared__ float square;
    const int count = channels * space, group = blockIdx.x % groups;
    x += blockIdx.x / groups * x_n + group * channels * x_c;
    y += (long long)blockIdx.x * count;
    if (threadIdx.x == 0 && fault != totals_not_zeroed) sum = square = 0.0f;
    if (fault != no_barrier_after_zero) __syncthreads();

    const int end = fault == load_unguarded ? (count + int(blockDim.x) - 1) / int(blockDim.x) * int(blockDim.x) : count;
    float mine = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < end; i += blockDim.x) {
        const float value = to_float(x[i / space * x_c + i % space * x_s]);
        mine += value;
        squares += value * value;
        if (fault == barrier_in_loop) __syncthreads();
    }
    if (fault == ballot_of_some && threadIdx.x < count) {
        // Lanes with an element, by a ballot that those without one do not reach.
        const unsigned mask = __ballot_sync(all_lanes, 1);
        for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(mask, mine, step);
    } else {
        mine = warp_sum(mine);
    }
    if (threadIdx.x % 32 == 0 || fault == every_lane_adds) {
        if (fault == totals_without_atomic)
            sum += mine;
        else
            atomicAdd(&sum, mine);
    }
    if (fault != no_barrier_before_mean) __syncthreads();
    const float mean = sum / count;

    mine = 0.0f;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const float centred = to_float(x[i / space * x_c + i % space * x_s]) - mean;
        mine += centred * centred;
    }
    if (fault != one_pass) mine = warp_sum(mine);
    if (fault == one_pass) mine = warp_sum(squares);
    if (threadIdx.x % 32 == 0) atomicAdd(&square, mine);
    __syncthreads();
    const float variance = fault == one_pass ? fmaxf(square / count - mean * mean, 0.0f) : square / count;
    const float rstd = rsqrtf(variance + eps);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        const int channel = fault == channel_within_group ? i / space : group * channels + i / space;
        const float shift = bias ? to_float(bias[channel * b_c]) : 0.0f;
        const float normed = (to_float(x[i / space * x_c + i % space * x_s]) - mean) * rstd;
        y[i] = from_float<ELEMENT>(normed * to_float(weight[channel * w_c]) + shift);
    }
}
