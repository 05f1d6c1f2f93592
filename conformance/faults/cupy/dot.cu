#include "common.cuh"

enum Fault {
    none,
    no_barrier,
    half_of_a_warp,
    stride_of_a_block,
    b_stride_ignored,
    partials_of_absent_warps,
    tail_unmasked,
    added_in_place,
    first_warp_adds,
    pair_beyond_the_end,
};

// Over a block of whole warps, in its first thread.
__device__ float reduce(float value, int fault) {
    __shared__ float partials[32];
    for (int step = fault == half_of_a_warp ? 8 : 16; step > 0; step /= 2)
        value += __shfl_down_sync(all_lanes, value, step);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    if (fault != no_barrier) __syncthreads();
    const int warps = fault == partials_of_absent_warps ? 32 : blockDim.x / 32;
    value = 0.0f;
    for (int warp = 0; warp < warps; ++warp) value += partials[warp];
    return value;
}

__device__ float products(const ELEMENT* a, const ELEMENT* b, int n, long long a_step, long long b_step, int fault) {
    if (fault == b_stride_ignored) b_step = a_step;
    const int step = fault == stride_of_a_block ? blockDim.x : gridDim.x * blockDim.x;
    const int end = fault == tail_unmasked ? (n + 31) / 32 * 32 : n;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step)
        sum += to_float(a[i * a_step]) * to_float(b[i * b_step]);
    return sum;
}

// Block i leaves its sum in partials[i].
extern "C" __global__ void dot_blocks(const ELEMENT* a, const ELEMENT* b, float* partials, int n, long long a_step,
                                      long long b_step, int fault) {
    const float sum = reduce(products(a, b, n, a_step, b_step, fault), fault);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// Blocks add to one total.
extern "C" __global__ void dot_atomic(const ELEMENT* a, const ELEMENT* b, float* total, int n, long long a_step,
                                      long long b_step, int fault) {
    const float sum = reduce(products(a, b, n, a_step, b_step, fault), fault);
    if (threadIdx.x == 0 || (fault == first_warp_adds && threadIdx.x < 32)) {
        if (fault == added_in_place)
            *total += sum;
        else
            atomicAdd(total, sum);
    }
}

extern "C" __global__ void dot_finish(const float* partials, ELEMENT* y, int count, int fault) {
    float sum = 0.0f;
    for (int i = 0; i < count; ++i) sum += partials[i];
    *y = from_float<ELEMENT>(sum);
}

#ifdef PAIR
// One block, whose sum is added once: as a pair with 0 where y has a second element.
extern "C" __global__ void dot_pair(const ELEMENT* a, const ELEMENT* b, ELEMENT* y, int elements, int n,
                                    long long a_step, long long b_step, int fault) {
    const float sum = reduce(products(a, b, n, a_step, b_step, fault), fault);
    if (threadIdx.x > 0) return;
    if (elements > 1 || fault == pair_beyond_the_end) {
        PAIR pair;
        pair.x = from_float<ELEMENT>(sum), pair.y = from_float<ELEMENT>(0.0f);
        atomicAdd(reinterpret_cast<PAIR*>(y), pair);
    } else {
        atomicAdd(y, from_float<ELEMENT>(sum));
    }
}
#endif
