// CUDA C++ for a host compiler: what nvcc and NVRTC know without any #include. Every kernel is compiled after this.
#pragma once
#define TOUCHSTONE_EMULATOR 1

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <new>
#include <tuple>
#include <type_traits>

#include <vector_functions.h>
#include <vector_types.h>

#include <surface_types.h>
#include <texture_types.h>

#include "engine.h"
#include "touchstone_bits.h"

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __managed__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __grid_constant__
#undef __maxnreg__
#undef __align__
#undef __cluster_dims__
#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((aligned(256), used))  // an overrun of one does not reach the next; all can be set
#define __managed__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
// __noinline__ is rewritten in the text: as a macro it would change what the C++ library means by it.
#define __align__(n) __attribute__((aligned(n)))

// Code that works on the emulator's own variables, and so must not be watched.
#if defined(__clang__)
#define TS_QUIET __attribute__((disable_sanitizer_instrumentation))
#define TS_PLAIN __attribute__((disable_sanitizer_instrumentation, noinline, unused))
#else
#define TS_QUIET __attribute__((no_sanitize("thread")))
#define TS_PLAIN __attribute__((no_sanitize("thread"), noipa, unused))  // noipa: no load moves to the caller
#endif
#define TS_PC reinterpret_cast<uint64_t>(__builtin_return_address(0))
#define TS_LINE int line = __builtin_LINE(), const char *file = __builtin_FILE()

constexpr int warpSize = 32;

namespace touchstone {

__forceinline__ uint3 unpack3(uint64_t packed) {
  return uint3{static_cast<unsigned>(packed), static_cast<unsigned>(packed >> 32) & 0xffffu,
               static_cast<unsigned>(packed >> 48)};
}

template <class Array>
__forceinline__ Array& shared(ts_site& site) {
  return *static_cast<Array*>(ts_shared(&site));
}

TS_PLAIN inline void* heap_new(size_t bytes) { return ts_heap_new(bytes); }
TS_PLAIN inline void heap_free(void* p) { ts_heap_free(p, TS_PC); }

template <class T>
constexpr ts_site site(const char* name, size_t align = 0) {
  return ts_site{
      name, sizeof(T), align > alignof(T) ? align : alignof(T), sizeof(typename std::remove_all_extents<T>::type),
      {std::extent<T, 0>::value, std::extent<T, 1>::value, std::extent<T, 2>::value, std::extent<T, 3>::value}};
}

template <class T>
__forceinline__ T* dynamic_shared() {
  return static_cast<T*>(ts_dynamic_shared());
}

// What Python must know of a kernel's parameters to pack them.
struct Parameter {
  uint32_t bytes;
  char kind;  // 'p'ointer, 'i'nteger, 'u'nsigned, 'f'loat, 'x' anything else
  uint32_t item;
  char constant;
  char scalar;  // what it points to, also in a vector: 'f', 'i', 'u', 'e' half, 'b' bfloat16, 'p'; 'x' anything else
  uint32_t scalar_bytes;
  char inner;  // the same of what a pointer to pointers leads to
  uint32_t inner_bytes;
};

template <class T, class = void>
struct Scalar {
  static constexpr char kind = std::is_floating_point<T>::value                       ? 'f'
                               : std::is_integral<T>::value || std::is_enum<T>::value ? std::is_signed<T>::value ?
                                   'i' : 'u'
                               : std::is_pointer<T>::value                            ? 'p'
                                                                                      : 'x';
  static constexpr uint32_t bytes = sizeof(T);
};
#define TS_VECTORS(name, T) TS_VECTOR(name##1, T) TS_VECTOR(name##2, T) TS_VECTOR(name##3, T) TS_VECTOR(name##4, T)
#define TS_VECTOR(V, T) \
  template <>           \
  struct Scalar<V> : Scalar<T> {};
TS_VECTORS(float, float)
TS_VECTORS(double, double)
TS_VECTORS(int, int)
TS_VECTORS(uint, unsigned)
TS_VECTORS(short, short)
TS_VECTORS(ushort, unsigned short)
TS_VECTORS(longlong, long long)
TS_VECTORS(ulonglong, unsigned long long)
TS_VECTOR(dim3, unsigned)
#undef TS_VECTOR
#undef TS_VECTORS

template <class T, bool = std::is_pointer<T>::value && !std::is_void<std::remove_pointer_t<T>>::value>
struct Inner {
  static constexpr char kind = 'x';
  static constexpr uint32_t bytes = 1;
};
template <class T>
struct Inner<T, true> : Scalar<std::remove_cv_t<std::remove_pointer_t<T>>> {};

template <class T>
constexpr Parameter parameter() {
  using V = typename std::remove_cv<T>::type;
  if constexpr (std::is_pointer<V>::value) {
    using E = typename std::remove_pointer<V>::type;
    if constexpr (std::is_void<E>::value)
      return {8, 'p', 1, std::is_const<E>::value, 'x', 1, 'x', 1};
    else
      return {8, 'p', sizeof(E), std::is_const<E>::value, Scalar<typename std::remove_cv<E>::type>::kind,
              Scalar<typename std::remove_cv<E>::type>::bytes, Inner<E>::kind, Inner<E>::bytes};
  } else if constexpr (std::is_floating_point<V>::value) {
    return {sizeof(V), 'f', 0, 0, 'x', 0, 'x', 0};
  } else if constexpr (std::is_integral<V>::value || std::is_enum<V>::value) {
    return {sizeof(V), std::is_signed<V>::value ? 'i' : 'u', 0, 0, 'x', 0, 'x', 0};
  } else {
    return {sizeof(V), 'x', 0, 0, Scalar<V>::kind, Scalar<V>::bytes, 'x', 0};  // of a vector, float4, its numbers
  }
}

struct Field {
  char name[80];
  uint64_t offset;
  uint32_t count;
  Parameter type;
};
template <class T>
struct Unrestricted {
  using type = T;
};
template <class T>
struct Unrestricted<T* __restrict__> {
  using type = T*;
};
// One more field of S; n is -1 from the first on that cannot be pointed to, a bit-field or one that is not public.
template <class S, class F>
void field(Field* out, int& n, const char* name, F pointer) {
  if constexpr (std::is_invocable<F, S*>::value) {
    if (n < 0) return;
    using T = std::remove_pointer_t<std::invoke_result_t<F, S*>>;
    Field& one = out[n++] = {};
    for (int i = 0; name[i] && i < 79; ++i) one.name[i] = name[i];
    one.offset = reinterpret_cast<size_t>(pointer(reinterpret_cast<S*>(256))) - 256;
    one.count = std::is_array<T>::value ? static_cast<uint32_t>(sizeof(T) / sizeof(std::remove_all_extents_t<T>)) : 0;
    one.type = parameter<typename Unrestricted<std::remove_cv_t<std::remove_all_extents_t<T>>>::type>();
  } else {
    n = -1;
  }
}
template <size_t I, class First, class... Rest>
struct Nth : Nth<I - 1, Rest...> {};
template <class First, class... Rest>
struct Nth<0, First, Rest...> {
  using type = std::remove_cv_t<std::remove_reference_t<First>>;
};
template <size_t I, class... A>
typename Nth<I, A...>::type* taken(void (*)(A...));  // only for its type

template <size_t... I>
struct Numbers {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> {
  using type = Numbers<I...>;
};

template <class... A, size_t... I>
TS_PLAIN void spread(void (*kernel)(A...), void** arguments, Numbers<I...>) {
  (void)arguments;
  kernel(*static_cast<typename std::remove_reference<A>::type*>(arguments[I])...);
}
template <class... A>
TS_PLAIN void call(void (*kernel)(A...), void** arguments) {
  spread(kernel, arguments, typename Count<sizeof...(A)>::type());
}
template <class... A>
TS_PLAIN int describe(void (*)(A...), Parameter* out, int room) {
  const Parameter all[sizeof...(A) + 1] = {parameter<A>()..., Parameter{}};
  for (int i = 0; i < static_cast<int>(sizeof...(A)) && i < room; ++i) out[i] = all[i];
  return static_cast<int>(sizeof...(A));
}

}  // namespace touchstone

#define threadIdx (touchstone::unpack3(ts_thread_index()))
#define blockIdx (touchstone::unpack3(ts_block_index()))
#define blockDim (touchstone::dim(ts_block_dim()))
#define gridDim (touchstone::dim(ts_grid_dim()))

namespace touchstone {
__forceinline__ dim3 dim(uint64_t packed) {
  const uint3 v = unpack3(packed);
  return dim3(v.x, v.y, v.z);
}
}  // namespace touchstone
#include "touchstone_warp.h"
#include "touchstone_atomics.h"
#include "touchstone_math.h"
#include "touchstone_mma.h"
#include "touchstone_ptx.h"
#include "touchstone_hopper.h"
#include "touchstone_texture.h"
