// Element conversions, 16-byte accesses, and reductions over a warp and over a block.
// Everything here is called by whole warps or whole blocks: no thread may have returned before.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr unsigned all_lanes = 0xffffffffu;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// from_float<Element>(value) rounds to nearest even.
template <typename Element> __device__ inline Element from_float(float value);
template <> __device__ inline float from_float<float>(float value) { return value; }
template <> __device__ inline __half from_float<__half>(float value) { return __float2half_rn(value); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

// Elements in one 16-byte access.
template <typename Element> constexpr int lanes_of = 16 / int(sizeof(Element));

template <typename Element> __device__ inline void unpack(uint4 packed, float (&values)[lanes_of<Element>]) {
    Element elements[lanes_of<Element>];
    memcpy(elements, &packed, 16);
#pragma unroll
    for (int i = 0; i < lanes_of<Element>; ++i) values[i] = to_float(elements[i]);
}

// A bfloat16 is the upper half of a float: one instruction each, of which NVRTC makes two where the pair's upper one is
// taken out of its word first.
template <> __device__ inline void unpack<__nv_bfloat16>(uint4 packed, float (&values)[8]) {
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

template <typename Element> __device__ inline uint4 pack(const float (&values)[lanes_of<Element>]) {
    Element elements[lanes_of<Element>];
#pragma unroll
    for (int i = 0; i < lanes_of<Element>; ++i) elements[i] = from_float<Element>(values[i]);
    uint4 packed;
    memcpy(&packed, elements, 16);
    return packed;
}

// One 16-byte load or store; the address must be a multiple of 16 bytes.
template <typename Element>
__device__ inline void load16(const Element* source, float (&values)[lanes_of<Element>]) {
    unpack<Element>(*reinterpret_cast<const uint4*>(source), values);
}

template <typename Element>
__device__ inline void store16(Element* target, const float (&values)[lanes_of<Element>]) {
    *reinterpret_cast<uint4*>(target) = pack<Element>(values);
}

// fmaxf drops a NaN; this keeps it.
__device__ inline float maximum(float a, float b) { return a > b || a != a ? a : b; }

// Every lane gets the same bits: in each step both partners add the same two numbers.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(all_lanes, value, step);
    return value;
}

// NaN is kept.
__device__ inline float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = maximum(value, __shfl_xor_sync(all_lanes, value, step));
    return value;
}

// Over a block along x, of a multiple of 32 threads up to 1024; every thread gets the result, the same bits.
// `threads` is the block's size where that is a constant, 0 where it is not.
// The last barrier lets the next reduction write `partials` again.
template <int threads = 0> __device__ inline float block_sum(float value) {
    __shared__ float partials[threads ? threads / 32 : 32];
    const int warps = (threads ? threads : int(blockDim.x)) / 32;
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    __syncthreads();
    value = partials[0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) value += partials[warp];
    __syncthreads();
    return value;
}

// NaN is kept.
template <int threads = 0> __device__ inline float block_max(float value) {
    __shared__ float partials[threads ? threads / 32 : 32];
    const int warps = (threads ? threads : int(blockDim.x)) / 32;
    value = warp_max(value);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    __syncthreads();
    value = partials[0];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) value = maximum(value, partials[warp]);
    __syncthreads();
    return value;
}
