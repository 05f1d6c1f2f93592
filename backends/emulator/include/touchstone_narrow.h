// What cuda_fp16.h and cuda_bf16.h leave to the device compiler, once for both: included with TS_N (the type), TS_N2
// (the pair), TS_TO (to float), TS_FROM (from float), TS_FROM_DOUBLE, TS_PAIR_OF, and the words of the
// conversions' names.

#define TS_UNARY(name, expression)                                     \
  inline TS_N h##name(const TS_N a) {                                  \
    const float x = TS_TO(a);                                          \
    (void)x;                                                           \
    return TS_FROM(expression);                                        \
  }                                                                    \
  inline TS_N2 h2##name(const TS_N2 a) { return TS_PAIR_OF(h##name(a.x), h##name(a.y)); }
TS_UNARY(trunc, truncf(x))
TS_UNARY(ceil, ceilf(x))
TS_UNARY(floor, floorf(x))
TS_UNARY(rint, rintf(x))
TS_UNARY(sqrt, sqrtf(x))
TS_UNARY(rsqrt, rsqrtf(x))
TS_UNARY(rcp, 1.0f / x)
TS_UNARY(log, logf(x))
TS_UNARY(log2, log2f(x))
TS_UNARY(log10, log10f(x))
TS_UNARY(exp, expf(x))
TS_UNARY(exp2, exp2f(x))
TS_UNARY(exp10, static_cast<float>(pow(10.0, static_cast<double>(x))))
TS_UNARY(cos, cosf(x))
TS_UNARY(sin, sinf(x))
TS_UNARY(tanh, tanhf(x))
TS_UNARY(tanh_approx, tanhf(x))
#undef TS_UNARY

// One rounding: the product is exact in double, and the sum is rounded to odd before it is rounded to the narrow type.
inline double touchstone_fused(TS_N a, TS_N b, TS_N c) {
  const double product = static_cast<double>(TS_TO(a)) * TS_TO(b), addend = TS_TO(c), sum = product + addend;
  if (!(fabs(sum) < 1e300)) return sum;
  const double back = sum - product, lost = (product - (sum - back)) + (addend - back);
  uint64_t bits = touchstone::bit_cast<uint64_t>(sum);
  if (lost == 0.0 || (bits & 1)) return sum;
  bits += (lost > 0.0) == (sum > 0.0) ? 1 : -1;
  return touchstone::bit_cast<double>(bits);
}
inline TS_N __hfma(const TS_N a, const TS_N b, const TS_N c) { return TS_FROM_DOUBLE(touchstone_fused(a, b, c)); }
inline TS_N __hfma_sat(const TS_N a, const TS_N b, const TS_N c) {
  const double r = touchstone_fused(a, b, c);
  return TS_FROM_DOUBLE(r > 0.0 ? (r < 1.0 ? r : 1.0) : 0.0);
}
inline TS_N __hfma_relu(const TS_N a, const TS_N b, const TS_N c) {
  const double r = touchstone_fused(a, b, c);
  return TS_FROM_DOUBLE(r < 0.0 ? 0.0 : r);
}
inline TS_N2 __hfma2(const TS_N2 a, const TS_N2 b, const TS_N2 c) {
  return TS_PAIR_OF(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline TS_N2 __hfma2_sat(const TS_N2 a, const TS_N2 b, const TS_N2 c) {
  return TS_PAIR_OF(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y));
}
inline TS_N2 __hfma2_relu(const TS_N2 a, const TS_N2 b, const TS_N2 c) {
  return TS_PAIR_OF(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));
}
inline TS_N2 __hcmadd(const TS_N2 a, const TS_N2 b, const TS_N2 c) {  // complex numbers
  return TS_PAIR_OF(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));
}

#define TS_JOIN_(a, b, c) a##b##c
#define TS_JOIN(a, b, c) TS_JOIN_(a, b, c)
#define TS_TO_INTEGER(word, I, mode, round) \
  inline I TS_JOIN(TS_TO_WORD, word, mode)(const TS_N a) { return touchstone::to_integer<I>(round(TS_TO(a))); }
#define TS_TO_INTEGERS(word, I)           \
  TS_TO_INTEGER(word, I, _rn, rintf)      \
  TS_TO_INTEGER(word, I, _rd, floorf)     \
  TS_TO_INTEGER(word, I, _ru, ceilf)
TS_TO_INTEGERS(int, int)
TS_TO_INTEGERS(uint, unsigned)
TS_TO_INTEGERS(short, short)
TS_TO_INTEGERS(ushort, unsigned short)
TS_TO_INTEGERS(ll, long long)
TS_TO_INTEGERS(ull, unsigned long long)
#undef TS_TO_INTEGERS
#undef TS_TO_INTEGER
#undef TS_JOIN
#undef TS_JOIN_

namespace touchstone {
template <>
struct Scalar<TS_N> {
  static constexpr char kind = TS_KIND;
  static constexpr uint32_t bytes = 2;
};
template <>
struct Scalar<TS_N2> : Scalar<TS_N> {};
template <>
struct Adder<TS_N> {
  TS_PLAIN static TS_N of(TS_N a, TS_N b) { return TS_FROM(TS_TO(a) + TS_TO(b)); }
};
template <>
struct Adder<TS_N2> {
  TS_PLAIN static TS_N2 of(TS_N2 a, TS_N2 b) {
    return TS_PAIR_OF(TS_FROM(TS_TO(a.x) + TS_TO(b.x)), TS_FROM(TS_TO(a.y) + TS_TO(b.y)));
  }
};
}  // namespace touchstone
__forceinline__ TS_N atomicAdd(TS_N* p, TS_N value) {
  return touchstone::atomic<touchstone::AddNarrow>(p, value, value);
}
__forceinline__ TS_N2 atomicAdd(TS_N2* p, TS_N2 value) {
  return touchstone::atomic<touchstone::AddNarrow>(p, value, value);
}

#undef TS_N
#undef TS_N2
#undef TS_KIND
#undef TS_TO
#undef TS_FROM
#undef TS_FROM_DOUBLE
#undef TS_PAIR_OF
#undef TS_TO_WORD
