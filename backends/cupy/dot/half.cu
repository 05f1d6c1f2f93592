#include "common.cuh"

// Over a warp, in float16, in its first lane.
__device__ inline __half half_sum(__half value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = __hadd(value, __shfl_down_sync(all_lanes, value, step));
    return value;
}

__device__ inline __half2 half_sum(__half2 value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = __hadd2(value, __shfl_down_sync(all_lanes, value, step));
    return value;
}

extern "C" __global__ void dot_half(const __half* a, const __half* b, __half* y, long long n, long long a_step,
                                    long long b_step) {
    __half sum = __float2half_rn(0.0f);
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        sum = __hfma(a[i * a_step], b[i * b_step], sum);
    sum = half_sum(sum);
    if (threadIdx.x % 32 == 0) atomicAdd(y, sum);
}

// The two elements from 2 pair on, or one and 0; `paired`: in one load.
__device__ inline __half2 load_pair(const __half* x, long long pair, long long n, long long step, int paired) {
    const long long i = 2 * pair;
    if (i + 1 == n) return __halves2half2(x[i * step], __float2half_rn(0.0f));
    if (paired) return reinterpret_cast<const __half2*>(x)[pair];
    return __halves2half2(x[i * step], x[(i + 1) * step]);
}

// `total` has the sum of the elements at even places and that of those at odd ones.
extern "C" __global__ void dot_half2(const __half* a, const __half* b, __half* total, long long n, long long a_step,
                                     long long b_step, int paired) {
    const long long pairs = (n + 1) / 2;
    __half2 sum = __float2half2_rn(0.0f);
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < pairs;
         i += (long long)gridDim.x * blockDim.x)
        sum = __hfma2(load_pair(a, i, n, a_step, paired), load_pair(b, i, n, b_step, paired), sum);
    sum = half_sum(sum);
    if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<__half2*>(total), sum);
}

// Adding to two halves is one instruction of the memory, to one half a loop of comparing and swapping on most GPUs.
__device__ inline void fast_add(__half* places, int place, int count, __half value) {
    const __half zero = __float2half_rn(0.0f);
    __half* target = places + place;
    const bool odd = reinterpret_cast<unsigned long long>(target) % 4;
    if (!odd && place + 1 < count)
        atomicAdd(reinterpret_cast<__half2*>(target), __halves2half2(value, zero));
    else if (odd && place > 0)
        atomicAdd(reinterpret_cast<__half2*>(target - 1), __halves2half2(zero, value));
    else
        atomicAdd(target, value); // at either end the pair would reach beyond the places
}

extern "C" __global__ void dot_fastatomic(const __half* a, const __half* b, __half* totals, int places, long long n,
                                          long long a_step, long long b_step) {
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    __half sum = __float2half_rn(0.0f);
    for (long long i = first; i < n; i += (long long)gridDim.x * blockDim.x)
        sum = __hfma(a[i * a_step], b[i * b_step], sum);
    sum = half_sum(sum);
    if (threadIdx.x % 32 == 0) fast_add(totals, int(first / 32 % places), places, sum);
}

// One warp.
extern "C" __global__ void dot_finish_half(const __half* totals, __half* y, int count) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += 32) sum += to_float(totals[i]);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *y = __float2half_rn(sum);
}
