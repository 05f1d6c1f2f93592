// What kernels of PyTorch's extensions name: its 16-bit types, accumulation types and accessors, from torch's own
// headers.
#pragma once
#define __CUDACC__ 1
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#undef __CUDACC__
#include <c10/util/complex.h>  // without Thrust's
#define __CUDACC__ 1
#include <ATen/AccumulateType.h>
#include <ATen/OpMathType.h>
#include <ATen/core/TensorAccessor.h>
#include <ATen/cuda/PhiloxCudaState.h>
#undef __CUDACC__

namespace torch {
using namespace at;
}
namespace at {
namespace cuda::philox {
inline std::tuple<uint64_t, uint64_t> unpack(PhiloxCudaState from) {  // seed and offset
  if (!from.captured_) return {from.seed_.val, from.offset_.val};
  return {static_cast<uint64_t>(*from.seed_.ptr), static_cast<uint64_t>(*from.offset_.ptr) + from.offset_intragraph_};
}
}  // namespace cuda::philox
template <class T>
struct numeric_limits {  // as device code has it, whose bounds may be infinite
  using Limits = std::numeric_limits<T>;
  static constexpr T lowest() { return Limits::lowest(); }
  static constexpr T max() { return Limits::max(); }
  static constexpr T lower_bound() { return Limits::has_infinity ? -Limits::infinity() : Limits::lowest(); }
  static constexpr T upper_bound() { return Limits::has_infinity ? Limits::infinity() : Limits::max(); }
};
}  // namespace at

#define CUDA_KERNEL_LOOP_TYPE(i, n, Index)                                                         \
  for (int64_t i##_loop_ = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, i = i##_loop_; i < (n); \
       i##_loop_ += int64_t(blockDim.x) * gridDim.x, i = i##_loop_)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)
#define CUDA_1D_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

template <class T>
inline T WARP_SHFL(T value, int lane, int width = warpSize, unsigned mask = 0xffffffffu) {
  return __shfl_sync(mask, value, lane, width);
}
template <class T>
inline T WARP_SHFL_UP(T value, unsigned by, int width = warpSize, unsigned mask = 0xffffffffu) {
  return __shfl_up_sync(mask, value, by, width);
}
template <class T>
inline T WARP_SHFL_DOWN(T value, unsigned by, int width = warpSize, unsigned mask = 0xffffffffu) {
  return __shfl_down_sync(mask, value, by, width);
}
template <class T>
inline T WARP_SHFL_XOR(T value, int by, int width = warpSize, unsigned mask = 0xffffffffu) {
  return __shfl_xor_sync(mask, value, by, width);
}
inline unsigned WARP_BALLOT(int predicate, unsigned mask = 0xffffffffu) { return __ballot_sync(mask, predicate); }
inline c10::Half atomicAdd(c10::Half* to, c10::Half value) {
  return atomicAdd(reinterpret_cast<__half*>(to), static_cast<__half>(value));
}
inline c10::BFloat16 atomicAdd(c10::BFloat16* to, c10::BFloat16 value) {
  return atomicAdd(reinterpret_cast<__nv_bfloat16*>(to), static_cast<__nv_bfloat16>(value));
}
template <class T>
inline T gpuAtomicAdd(T* to, T value) {
  return atomicAdd(to, value);
}
template <class T>
inline T gpuAtomicAddNoReturn(T* to, T value) {
  return atomicAdd(to, value);
}
