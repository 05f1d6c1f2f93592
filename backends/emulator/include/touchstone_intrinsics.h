// Arithmetic by name that few kernels use: directed rounding, two or four numbers in a word, functions of probability.
#pragma once
#include <cfenv>

namespace touchstone {

// `make` with operands that the compiler does not know, in another rounding mode. No thread changes meanwhile.
template <class Make>
TS_PLAIN auto rounded(int mode, Make make) {
  fesetround(mode);
  asm volatile("" : : "g"(&make) : "memory");
  volatile auto out = make();
  fesetround(FE_TONEAREST);
  return static_cast<std::remove_volatile_t<decltype(out)>>(out);
}

TS_PLAIN inline double quantile(double p) {  // of the normal distribution
  if (!(p > 0 && p < 1)) return p == 0 ? -INFINITY : p == 1 ? INFINITY : NAN;
  double low = -40, high = 40;
  for (int i = 0; i < 64; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * erfc(-middle * 0.70710678118654752) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

template <int Bits, class F>
__forceinline__ unsigned each_lane(unsigned a, unsigned b, F of) {
  unsigned out = 0;
  for (int at = 0; at < 32; at += Bits) {
    constexpr unsigned mask = (1u << Bits) - 1;
    const int ua = static_cast<int>(a >> at & mask), ub = static_cast<int>(b >> at & mask);
    const int sa = ua >> (Bits - 1) ? ua - (1 << Bits) : ua, sb = ub >> (Bits - 1) ? ub - (1 << Bits) : ub;
    out |= (static_cast<unsigned>(of(ua, ub, sa, sb)) & mask) << at;
  }
  return out;
}
template <int Bits, class F>
__forceinline__ unsigned sum_of_lanes(unsigned a, unsigned b, F of) {
  unsigned sum = 0;
  for (int at = 0; at < 32; at += Bits) {
    constexpr unsigned mask = (1u << Bits) - 1;
    const int ua = static_cast<int>(a >> at & mask), ub = static_cast<int>(b >> at & mask);
    const int sa = ua >> (Bits - 1) ? ua - (1 << Bits) : ua, sb = ub >> (Bits - 1) ? ub - (1 << Bits) : ub;
    sum += static_cast<unsigned>(of(ua, ub, sa, sb));
  }
  return sum;
}
template <int Bits>
constexpr int clamp_signed(int x) {
  return x < -(1 << (Bits - 1)) ? -(1 << (Bits - 1)) : x > (1 << (Bits - 1)) - 1 ? (1 << (Bits - 1)) - 1 : x;
}
template <int Bits>
constexpr int clamp_unsigned(int x) {
  return x < 0 ? 0 : x > (1 << Bits) - 1 ? (1 << Bits) - 1 : x;
}

}  // namespace touchstone

#define TS_MODES(TS_ONE) TS_ONE(rd, FE_DOWNWARD) TS_ONE(ru, FE_UPWARD) TS_ONE(rz, FE_TOWARDZERO)
#define TS_DIRECTED(mode, code)                                                                                     \
  inline float __fadd_##mode(float a, float b) { return touchstone::rounded(code, [&] { return a + b; }); }         \
  inline float __fsub_##mode(float a, float b) { return touchstone::rounded(code, [&] { return a - b; }); }         \
  inline float __fmul_##mode(float a, float b) { return touchstone::rounded(code, [&] { return a * b; }); }         \
  inline float __fdiv_##mode(float a, float b) { return touchstone::rounded(code, [&] { return a / b; }); }         \
  inline float __frcp_##mode(float a) { return touchstone::rounded(code, [&] { return 1.0f / a; }); }               \
  inline float __fsqrt_##mode(float a) { return touchstone::rounded(code, [&] { return sqrtf(a); }); }              \
  inline float __fmaf_##mode(float a, float b, float c) {                                                           \
    return touchstone::rounded(code, [&] { return __builtin_fmaf(a, b, c); });                                      \
  }                                                                                                                 \
  inline double __dadd_##mode(double a, double b) { return touchstone::rounded(code, [&] { return a + b; }); }      \
  inline double __dsub_##mode(double a, double b) { return touchstone::rounded(code, [&] { return a - b; }); }      \
  inline double __dmul_##mode(double a, double b) { return touchstone::rounded(code, [&] { return a * b; }); }      \
  inline double __ddiv_##mode(double a, double b) { return touchstone::rounded(code, [&] { return a / b; }); }      \
  inline double __drcp_##mode(double a) { return touchstone::rounded(code, [&] { return 1.0 / a; }); }              \
  inline double __dsqrt_##mode(double a) { return touchstone::rounded(code, [&] { return sqrt(a); }); }             \
  inline double __fma_##mode(double a, double b, double c) {                                                        \
    return touchstone::rounded(code, [&] { return __builtin_fma(a, b, c); });                                       \
  }                                                                                                                 \
  inline float __double2float_##mode(double a) {                                                                    \
    return touchstone::rounded(code, [&] { return static_cast<float>(a); });                                        \
  }                                                                                                                 \
  TS_FROM_INTEGER(int, int, mode, code)                                                                             \
  TS_FROM_INTEGER(uint, unsigned, mode, code)                                                                       \
  TS_FROM_INTEGER(ll, long long, mode, code)                                                                        \
  TS_FROM_INTEGER(ull, unsigned long long, mode, code)
#define TS_FROM_INTEGER(name, I, mode, code)                                        \
  inline float __##name##2float_##mode(I a) {                                       \
    return touchstone::rounded(code, [&] { return static_cast<float>(a); });        \
  }                                                                                 \
  inline double __##name##2double_##mode(I a) {                                     \
    return touchstone::rounded(code, [&] { return static_cast<double>(a); });       \
  }
TS_MODES(TS_DIRECTED)
#undef TS_DIRECTED
#undef TS_FROM_INTEGER
#undef TS_MODES
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __uint2double_rn(unsigned a) { return a; }
inline double __ll2double_rn(long long a) { return static_cast<double>(a); }
inline double __ull2double_rn(unsigned long long a) { return static_cast<double>(a); }
#define TS_TO_LONG(from, F)                                                                                          \
  inline long long __##from##2ll_rd(F a) { return touchstone::to_integer<long long>(floor(a)); }                     \
  inline long long __##from##2ll_ru(F a) { return touchstone::to_integer<long long>(ceil(a)); }                      \
  inline unsigned long long __##from##2ull_rd(F a) { return touchstone::to_integer<unsigned long long>(floor(a)); }  \
  inline unsigned long long __##from##2ull_ru(F a) { return touchstone::to_integer<unsigned long long>(ceil(a)); }
TS_TO_LONG(float, float)
TS_TO_LONG(double, double)
#undef TS_TO_LONG
inline double __hiloint2double(int high, int low) {
  return touchstone::bit_cast<double>(static_cast<uint64_t>(static_cast<unsigned>(high)) << 32 |
                                      static_cast<unsigned>(low));
}
inline unsigned long long __brevll(unsigned long long a) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(a))) << 32 |
         __brev(static_cast<unsigned>(a >> 32));
}
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned __uhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) + b) >> 1);
}
inline unsigned __urhadd(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) + b + 1) >> 1);
}

inline double sinpi(double a) { return sin(3.14159265358979323846 * fmod(a, 2.0)); }
inline double cospi(double a) { return cos(3.14159265358979323846 * fmod(a, 2.0)); }
inline void sincospi(double a, double* s, double* c) {
  *s = sinpi(a);
  *c = cospi(a);
}
inline void sincospif(float a, float* s, float* c) {
  *s = sinpif(a);
  *c = cospif(a);
}
inline double rcbrt(double a) { return 1 / cbrt(a); }
inline double rhypot(double a, double b) { return 1 / hypot(a, b); }
inline double norm3d(double a, double b, double c) { return sqrt(a * a + b * b + c * c); }
inline double norm4d(double a, double b, double c, double d) { return sqrt(a * a + b * b + c * c + d * d); }
inline float norm4df(float a, float b, float c, float d) { return sqrtf(a * a + b * b + c * c + d * d); }
inline double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
inline float rnorm3df(float a, float b, float c) { return 1 / norm3df(a, b, c); }
inline double rnorm4d(double a, double b, double c, double d) { return 1 / norm4d(a, b, c, d); }
inline float rnorm4df(float a, float b, float c, float d) { return 1 / norm4df(a, b, c, d); }
inline double norm(int n, const double* p) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += p[i] * p[i];
  return sqrt(sum);
}
inline float normf(int n, const float* p) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += p[i] * p[i];
  return sqrtf(sum);
}
inline double rnorm(int n, const double* p) { return 1 / norm(n, p); }
inline float rnormf(int n, const float* p) { return 1 / normf(n, p); }
inline double normcdf(double a) { return 0.5 * erfc(-0.70710678118654752 * a); }
inline double normcdfinv(double a) { return touchstone::quantile(a); }
inline float normcdfinvf(float a) { return static_cast<float>(touchstone::quantile(a)); }
inline double erfcinv(double a) { return -touchstone::quantile(a / 2) * 0.70710678118654752; }
inline double erfinv(double a) {
  double y = touchstone::quantile((a + 1) / 2) * 0.70710678118654752;
  if (fabs(a) < 0.9) y -= (erf(y) - a) / (1.1283791670955126 * exp(-y * y));  // what (a + 1) / 2 has lost
  return y;
}
inline float erfcinvf(float a) { return static_cast<float>(erfcinv(a)); }
inline float erfinvf(float a) { return static_cast<float>(erfinv(a)); }
inline double erfcx(double a) { return a < 25 ? exp(a * a) * erfc(a) : 0.5641895835477563 / a * (1 - 0.5 / (a * a)); }
#ifdef __cpp_lib_math_special_functions
inline double cyl_bessel_i0(double a) { return std::cyl_bessel_i(0.0, fabs(a)); }
inline float cyl_bessel_i0f(float a) { return static_cast<float>(cyl_bessel_i0(a)); }
inline double cyl_bessel_i1(double a) { return copysign(std::cyl_bessel_i(1.0, fabs(a)), a); }
inline float cyl_bessel_i1f(float a) { return static_cast<float>(cyl_bessel_i1(a)); }
#endif

// Two halves or four bytes of a word at once. `u` are the lanes as unsigned numbers, `s` as signed ones.
#define TS_LANES(name, bits, expression)                                                                 \
  inline unsigned __v##name(unsigned a, unsigned b) {                                                    \
    constexpr int N = bits;                                                                              \
    (void)N;                                                                                             \
    return touchstone::each_lane<bits>(a, b, [](int ua, int ub, int sa, int sb) {                        \
      (void)ua, (void)ub, (void)sa, (void)sb;                                                            \
      return expression;                                                                                 \
    });                                                                                                  \
  }
#define TS_BOTH(name, expression) TS_LANES(name##2, 16, expression) TS_LANES(name##4, 8, expression)
#define TS_ALONE(name, bits, expression) \
  inline unsigned __v##name(unsigned a) { \
    return touchstone::each_lane<bits>(a, 0, [](int, int, int sa, int) { return expression; }); \
  }
#define TS_COMPARE(name, condition) TS_BOTH(cmp##name, condition ? -1 : 0) TS_BOTH(set##name, condition ? 1 : 0)
TS_BOTH(add, ua + ub)
TS_BOTH(addss, touchstone::clamp_signed<N>(sa + sb))
TS_BOTH(addus, touchstone::clamp_unsigned<N>(ua + ub))
TS_BOTH(sub, ua - ub)
TS_BOTH(subss, touchstone::clamp_signed<N>(sa - sb))
TS_BOTH(subus, touchstone::clamp_unsigned<N>(ua - ub))
TS_BOTH(absdiffs, sa > sb ? sa - sb : sb - sa)
TS_BOTH(absdiffu, ua > ub ? ua - ub : ub - ua)
TS_BOTH(avgs, (sa + sb + (sa + sb >= 0)) >> 1)
TS_BOTH(avgu, (ua + ub + 1) >> 1)
TS_BOTH(haddu, (ua + ub) >> 1)
TS_BOTH(maxs, sa > sb ? sa : sb)
TS_BOTH(maxu, ua > ub ? ua : ub)
TS_BOTH(mins, sa < sb ? sa : sb)
TS_BOTH(minu, ua < ub ? ua : ub)
TS_COMPARE(eq, ua == ub)
TS_COMPARE(ne, ua != ub)
TS_COMPARE(ges, sa >= sb)
TS_COMPARE(geu, ua >= ub)
TS_COMPARE(gts, sa > sb)
TS_COMPARE(gtu, ua > ub)
TS_COMPARE(les, sa <= sb)
TS_COMPARE(leu, ua <= ub)
TS_COMPARE(lts, sa < sb)
TS_COMPARE(ltu, ua < ub)
#define TS_ALONE_BOTH(name, halves, bytes) TS_ALONE(name##2, 16, halves) TS_ALONE(name##4, 8, bytes)
TS_ALONE_BOTH(abs, sa < 0 ? -sa : sa, sa < 0 ? -sa : sa)
TS_ALONE_BOTH(absss, touchstone::clamp_signed<16>(sa < 0 ? -sa : sa), touchstone::clamp_signed<8>(sa < 0 ? -sa : sa))
TS_ALONE_BOTH(neg, -sa, -sa)
TS_ALONE_BOTH(negss, touchstone::clamp_signed<16>(-sa), touchstone::clamp_signed<8>(-sa))
#define TS_SUM(name, bits, expression)                                                            \
  inline unsigned __v##name(unsigned a, unsigned b) {                                             \
    return touchstone::sum_of_lanes<bits>(a, b, [](int ua, int ub, int sa, int sb) {              \
      (void)ua, (void)ub, (void)sa, (void)sb;                                                     \
      return expression;                                                                          \
    });                                                                                           \
  }
TS_SUM(sads2, 16, sa > sb ? sa - sb : sb - sa)
TS_SUM(sads4, 8, sa > sb ? sa - sb : sb - sa)
TS_SUM(sadu2, 16, ua > ub ? ua - ub : ub - ua)
TS_SUM(sadu4, 8, ua > ub ? ua - ub : ub - ua)
#undef TS_SUM
#undef TS_COMPARE
#undef TS_ALONE_BOTH
#undef TS_ALONE
#undef TS_BOTH
#undef TS_LANES

// Of a sum, or of two or three numbers, the larger or smaller one; `relu`: at least 0; `vib`: and whether it is `a`.
#define TS_MIN_MAX(m)                                                                                                \
  inline int __vi##m##_s32_relu(int a, int b) { return max(m(a, b), 0); }                                            \
  inline int __viadd##m##_s32(int a, int b, int c) { return m(static_cast<int>(unsigned(a) + unsigned(b)), c); }     \
  inline unsigned __viadd##m##_u32(unsigned a, unsigned b, unsigned c) { return m(a + b, c); }                       \
  inline int __viadd##m##_s32_relu(int a, int b, int c) { return max(__viadd##m##_s32(a, b, c), 0); }                \
  inline int __vi##m##3_s32(int a, int b, int c) { return m(m(a, b), c); }                                           \
  inline unsigned __vi##m##3_u32(unsigned a, unsigned b, unsigned c) { return m(m(a, b), c); }                       \
  inline int __vi##m##3_s32_relu(int a, int b, int c) { return max(__vi##m##3_s32(a, b, c), 0); }                    \
  inline int __vib##m##_s32(int a, int b, bool* first) { return *first = m(a, b) == a, m(a, b); }                    \
  inline unsigned __vib##m##_u32(unsigned a, unsigned b, bool* first) { return *first = m(a, b) == a, m(a, b); }     \
  inline unsigned __vi##m##_s16x2_relu(unsigned a, unsigned b) { return __vmaxs2(__v##m##s2(a, b), 0); }             \
  inline unsigned __viadd##m##_s16x2_relu(unsigned a, unsigned b, unsigned c) {                                      \
    return __vmaxs2(__v##m##s2(__vadd2(a, b), c), 0);                                                                \
  }                                                                                                                  \
  inline unsigned __vi##m##3_s16x2_relu(unsigned a, unsigned b, unsigned c) {                                        \
    return __vmaxs2(__v##m##s2(__v##m##s2(a, b), c), 0);                                                             \
  }                                                                                                                  \
  TS_MIN_MAX_HALVES(m, s)                                                                                            \
  TS_MIN_MAX_HALVES(m, u)
#define TS_MIN_MAX_HALVES(m, sign)                                                                                   \
  inline unsigned __viadd##m##_##sign##16x2(unsigned a, unsigned b, unsigned c) {                                    \
    return __v##m##sign##2(__vadd2(a, b), c);                                                                        \
  }                                                                                                                  \
  inline unsigned __vi##m##3_##sign##16x2(unsigned a, unsigned b, unsigned c) {                                      \
    return __v##m##sign##2(__v##m##sign##2(a, b), c);                                                                \
  }                                                                                                                  \
  inline unsigned __vib##m##_##sign##16x2(unsigned a, unsigned b, bool* high, bool* low) {                           \
    const unsigned out = __v##m##sign##2(a, b);                                                                      \
    *high = out >> 16 == a >> 16, *low = (out & 0xffffu) == (a & 0xffffu);                                           \
    return out;                                                                                                      \
  }
TS_MIN_MAX(max)
TS_MIN_MAX(min)
#undef TS_MIN_MAX
#undef TS_MIN_MAX_HALVES

// The place of the `offset`-th bit that is set from `base` on, upwards, or downwards where it is negative.
inline unsigned __fns(unsigned mask, unsigned base, int offset) {
  const int step = offset < 0 ? -1 : 1;
  int left = offset < 0 ? -offset : offset;
  if (!left) return base < 32 && mask >> base & 1u ? base : 0xffffffffu;
  for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step)
    if (mask >> at & 1u && !--left) return static_cast<unsigned>(at);
  return 0xffffffffu;
}

inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255u) * (b >> i & 255u);
  return c;
}
inline int __dp2a_lo(int a, int b, int c) {
  return c + static_cast<short>(a) * static_cast<signed char>(b) + (a >> 16) * static_cast<signed char>(b >> 8);
}
inline int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
