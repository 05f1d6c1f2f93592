// CUDA's arithmetic functions by those of the host. A float function stays a float function.
#pragma once
#include <cmath>

// IEEE operations by name; no contraction happens here, so they are the operators.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a))); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

inline float rsqrtf(float a) { return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a))); }
inline double rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
inline float rsqrt(float a) { return rsqrtf(a); }
inline float rcbrtf(float a) { return 1.0f / cbrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __exp2f(float a) { return exp2f(a); }
inline float __exp10f(float a) { return powf(10.0f, a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __log10f(float a) { return log10f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __tanf(float a) { return tanf(a); }
inline float __tanhf(float a) { return tanhf(a); }
inline void __sincosf(float a, float* s, float* c) {
  *s = sinf(a);
  *c = cosf(a);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
inline float normcdff(float a) { return 0.5f * erfcf(-0.70710678118654752f * a); }
inline float erfcxf(float a) {
  return static_cast<float>(exp(static_cast<double>(a) * a) * erfc(static_cast<double>(a)));
}
inline float sinpif(float a) { return static_cast<float>(sin(3.14159265358979323846 * a)); }
inline float cospif(float a) { return static_cast<float>(cos(3.14159265358979323846 * a)); }
inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }

#define TS_PAIR(name, T, choice) inline T name(T a, T b) { return choice; }
TS_PAIR(min, int, a < b ? a : b)
TS_PAIR(max, int, a > b ? a : b)
TS_PAIR(min, unsigned, a < b ? a : b)
TS_PAIR(max, unsigned, a > b ? a : b)
TS_PAIR(min, long, a < b ? a : b)
TS_PAIR(max, long, a > b ? a : b)
TS_PAIR(min, unsigned long, a < b ? a : b)
TS_PAIR(max, unsigned long, a > b ? a : b)
TS_PAIR(min, long long, a < b ? a : b)
TS_PAIR(max, long long, a > b ? a : b)
TS_PAIR(min, unsigned long long, a < b ? a : b)
TS_PAIR(max, unsigned long long, a > b ? a : b)
inline int imin(int a, int b) { return a < b ? a : b; }
inline int imax(int a, int b) { return a > b ? a : b; }
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long llmin(long long a, long long b) { return a < b ? a : b; }
inline long long llmax(long long a, long long b) { return a > b ? a : b; }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }
TS_PAIR(min, float, fminf(a, b))
TS_PAIR(max, float, fmaxf(a, b))
TS_PAIR(min, double, fmin(a, b))
TS_PAIR(max, double, fmax(a, b))
#undef TS_PAIR
// Mixed operands, as CUDA has them: unsigned wins, the wider wins.
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
inline long long min(int a, long long b) { return min(static_cast<long long>(a), b); }
inline long long min(long long a, int b) { return min(a, static_cast<long long>(b)); }
inline long long max(int a, long long b) { return max(static_cast<long long>(a), b); }
inline long long max(long long a, int b) { return max(a, static_cast<long long>(b)); }
inline double min(float a, double b) { return fmin(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double max(double a, float b) { return fmax(a, b); }

inline int __float_as_int(float a) { return touchstone::bit_cast<int>(a); }
inline unsigned __float_as_uint(float a) { return touchstone::bit_cast<unsigned>(a); }
inline float __int_as_float(int a) { return touchstone::bit_cast<float>(a); }
inline float __uint_as_float(unsigned a) { return touchstone::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return touchstone::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return touchstone::bit_cast<double>(a); }
inline int __double2hiint(double a) { return static_cast<int>(touchstone::bit_cast<uint64_t>(a) >> 32); }
inline int __double2loint(double a) { return static_cast<int>(touchstone::bit_cast<uint64_t>(a)); }

namespace touchstone {
// Conversions saturate, and NaN becomes 0, as on the GPU; a plain C++ cast out of range would be undefined.
template <class I, class F>
__forceinline__ I to_integer(F value) {
  if (!(value == value)) return 0;
  const F low = static_cast<F>(std::is_signed<I>::value ? -ldexp(1.0, sizeof(I) * 8 - 1) : 0.0);
  const F high = static_cast<F>(ldexp(1.0, sizeof(I) * 8 - std::is_signed<I>::value));
  if (value < low) return static_cast<I>(std::is_signed<I>::value ? I(1) << (sizeof(I) * 8 - 1) : 0);
  if (value >= high) return static_cast<I>(~(std::is_signed<I>::value ? I(1) << (sizeof(I) * 8 - 1) : I(0)));
  return static_cast<I>(value);
}
}  // namespace touchstone
#define TS_TO_INTEGER(from, F, rint_, floor_, ceil_, trunc_)                                                        \
  inline int __##from##2int_rn(F a) { return touchstone::to_integer<int>(rint_(a)); }                               \
  inline int __##from##2int_rd(F a) { return touchstone::to_integer<int>(floor_(a)); }                              \
  inline int __##from##2int_ru(F a) { return touchstone::to_integer<int>(ceil_(a)); }                               \
  inline int __##from##2int_rz(F a) { return touchstone::to_integer<int>(trunc_(a)); }                              \
  inline unsigned __##from##2uint_rn(F a) { return touchstone::to_integer<unsigned>(rint_(a)); }                    \
  inline unsigned __##from##2uint_rd(F a) { return touchstone::to_integer<unsigned>(floor_(a)); }                   \
  inline unsigned __##from##2uint_ru(F a) { return touchstone::to_integer<unsigned>(ceil_(a)); }                    \
  inline unsigned __##from##2uint_rz(F a) { return touchstone::to_integer<unsigned>(trunc_(a)); }                   \
  inline long long __##from##2ll_rn(F a) { return touchstone::to_integer<long long>(rint_(a)); }                    \
  inline long long __##from##2ll_rz(F a) { return touchstone::to_integer<long long>(trunc_(a)); }                   \
  inline unsigned long long __##from##2ull_rn(F a) { return touchstone::to_integer<unsigned long long>(rint_(a)); } \
  inline unsigned long long __##from##2ull_rz(F a) { return touchstone::to_integer<unsigned long long>(trunc_(a)); }
TS_TO_INTEGER(float, float, rintf, floorf, ceilf, truncf)
TS_TO_INTEGER(double, double, rint, floor, ceil, trunc)
#undef TS_TO_INTEGER
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __ll2float_rn(long long a) { return static_cast<float>(a); }
inline float __ull2float_rn(unsigned long long a) { return static_cast<float>(a); }
inline double __int2double_rn(int a) { return a; }
inline float __double2float_rn(double a) { return static_cast<float>(a); }

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(static_cast<unsigned>(a)) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll(static_cast<unsigned long long>(a)) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __brev(unsigned a) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (a >> i & 1u) << (31 - i);
  return r;
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
inline int __mul24(int a, int b) { return static_cast<int>(static_cast<long long>(a << 8 >> 8) * (b << 8 >> 8)); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline unsigned __sad(int a, int b, unsigned c) { return c + static_cast<unsigned>(a > b ? a - b : b - a); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> 4 * i & 15u;
    unsigned byte = static_cast<unsigned>(both >> 8 * (s & 7)) & 255u;
    if (s & 8) byte = byte & 128u ? 255u : 0u;
    r |= byte << 8 * i;
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return by < 32 ? __funnelshift_l(low, high, by) : low;
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return by < 32 ? __funnelshift_r(low, high, by) : high;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<signed char>(a >> 8 * i) * static_cast<signed char>(b >> 8 * i);
  return c;
}

#include "touchstone_intrinsics.h"

// Cache hints mean nothing here.
#define TS_LOAD(name) \
  template <class T>  \
  __forceinline__ T name(const T* p) { return *p; }
TS_LOAD(__ldg)
TS_LOAD(__ldca)
TS_LOAD(__ldcg)
TS_LOAD(__ldcs)
TS_LOAD(__ldlu)
TS_LOAD(__ldcv)
#undef TS_LOAD
#define TS_STORE(name) \
  template <class T>   \
  __forceinline__ void name(T* p, T value) { *p = value; }
TS_STORE(__stwb)
TS_STORE(__stcg)
TS_STORE(__stcs)
TS_STORE(__stwt)
#undef TS_STORE

inline unsigned __isGlobal(const void* p) { return ts_shared_address(p) == 0; }
inline unsigned __isShared(const void* p) { return ts_shared_address(p) != 0; }
inline size_t __cvta_generic_to_shared(const void* p) { return ts_shared_address(p); }
inline void* __cvta_shared_to_generic(size_t address) { return ts_shared_memory(address); }
inline size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }
inline void __trap() { ts_fault("__trap()", TS_PC); }
inline void __brkpt() { ts_fault("__brkpt()", TS_PC); }
#define __builtin_assume(condition) ((void)0)
#include <stdio.h>
namespace touchstone {
TS_PLAIN inline uint64_t here() { return TS_PC; }
TS_PLAIN inline void assertion(const char* condition) {
  char text[400];
  snprintf(text, sizeof text, "assertion failed: %s", condition);
  ts_fault(text, TS_PC);
}
}  // namespace touchstone
// Preferred to C's own, which is what a text without arguments is given to.
template <class A, class... B>
TS_PLAIN int printf(const char* format, A first, B... rest) {
  const int written = ::fprintf(stdout, format, first, rest...);
  fflush(stdout);
  return written;
}
#include "assert.h"
