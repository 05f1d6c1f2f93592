// What inline PTX is translated to (ptx.py): registers are variables of their width, read as the type that an
// instruction names.
#pragma once

namespace touchstone {

TS_PLAIN inline void not_covered(const char* what) {
  char text[400];
  snprintf(text, sizeof text, "not covered by the emulator: %s", what);
  ts_fault(text, TS_PC);
}

namespace ptx {

__forceinline__ unsigned thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
__forceinline__ unsigned threads() { return blockDim.x * blockDim.y * blockDim.z; }

// The low bytes of a register as a type, and as much of a register as a value has; the rest is 0.
template <class To, class From>
__forceinline__ To as(const From& from) {
  To to{};
  __builtin_memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}
template <class Register, class Value>
__forceinline__ void set(Register& to, const Value& value) {
  to = as<Register>(value);
}
__forceinline__ void set(bool& to, bool value) { to = value; }

// An operand as it is written: integers are converted, what is no integer is taken by its bits.
template <class To, class From>
__forceinline__ To given(From from) {
  if constexpr (std::is_arithmetic<From>::value || std::is_enum<From>::value) {
    if constexpr (std::is_floating_point<To>::value == std::is_floating_point<From>::value)
      return static_cast<To>(from);
    else
      return as<To>(from);
  } else if constexpr (std::is_pointer<From>::value) {
    return static_cast<To>(reinterpret_cast<uint64_t>(from));
  } else {
    return as<To>(from);
  }
}
template <class To, class From>
__forceinline__ void put(To& to, const From& from) {
  if constexpr (std::is_integral<To>::value && std::is_integral<From>::value) to = static_cast<To>(from);
  else to = as<To>(from);
}

// Shared memory by its 32-bit address, which is an offset into the block's memory.
__forceinline__ char* shared(uint64_t address) { return static_cast<char*>(ts_shared_memory(address)); }

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T x[N];
};
template <class T, int N, bool is_volatile>
__forceinline__ Vector<T, N> load(const char* p) {
  Vector<T, N> out;
  if constexpr (is_volatile) {
    for (int i = 0; i < N; ++i) out.x[i] = reinterpret_cast<const volatile T*>(p)[i];
  } else {
    out = *reinterpret_cast<const Vector<T, N>*>(p);
  }
  return out;
}
template <class T, int N, bool is_volatile>
__forceinline__ void store(char* p, const Vector<T, N>& value) {
  if constexpr (is_volatile) {
    for (int i = 0; i < N; ++i) reinterpret_cast<volatile T*>(p)[i] = value.x[i];
  } else {
    *reinterpret_cast<Vector<T, N>*>(p) = value;
  }
}

template <bool brain>
struct Narrow16 {
  uint16_t bits;
  Narrow16() = default;
  Narrow16(float value) : bits(brain ? to_brain(value) : to_half(value)) {}
  operator float() const { return widen(bits, brain); }
};
template <bool brain>
struct Narrow16Pair {
  Narrow16<brain> low, high;
};
using Half = Narrow16<false>;
using Brain = Narrow16<true>;
using Half2 = Narrow16Pair<false>;
using Brain2 = Narrow16Pair<true>;
#define TS_PAIRWISE(sign)                                                                        \
  template <bool b>                                                                              \
  __forceinline__ Narrow16Pair<b> operator sign(const Narrow16Pair<b>& x, const Narrow16Pair<b>& y) { \
    return {float(x.low) sign float(y.low), float(x.high) sign float(y.high)};                  \
  }
TS_PAIRWISE(+)
TS_PAIRWISE(-)
TS_PAIRWISE(*)
#undef TS_PAIRWISE
template <class Pair>
__forceinline__ Pair pack(float high, float low, bool relu) {
  if (relu) high = high > 0.0f ? high : 0.0f, low = low > 0.0f ? low : 0.0f;
  return Pair{low, high};
}
__forceinline__ uint32_t to_tf32(float value, bool away) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if (value != value) return 0x7fffffffu;
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + (away ? 0x1000u : 0xfffu + (bits >> 13 & 1))) & 0xffffe000u;
}

enum Rounding { rn, rz, rm, rp, rni, rzi, rmi, rpi };
template <class To, class From>
__forceinline__ To convert(From from, Rounding mode) {
  if constexpr (std::is_integral<To>::value && !std::is_integral<From>::value) {
    const double value = static_cast<double>(static_cast<std::conditional_t<std::is_same<From, double>::value,
        double, float>>(from));
    const double rounded = mode == rzi || mode == rz   ? trunc(value)
                           : mode == rmi || mode == rm ? floor(value)
                           : mode == rpi || mode == rp ? ceil(value)
                                                       : rint(value);
    return to_integer<To>(rounded);
  } else if constexpr (std::is_integral<To>::value) {
    return static_cast<To>(from);
  } else if constexpr (std::is_integral<From>::value) {
    return static_cast<To>(static_cast<std::conditional_t<std::is_same<To, double>::value, double, float>>(from));
  } else if constexpr (std::is_same<To, float>::value && std::is_same<From, float>::value) {
    return mode == rni ? rintf(from) : mode == rzi ? truncf(from) : mode == rmi ? floorf(from) : mode == rpi ?
        ceilf(from) : from;
  } else {
    return static_cast<To>(static_cast<std::conditional_t<std::is_same<From, double>::value, double, float>>(from));
  }
}

template <class T>
__forceinline__ T fma_(T a, T b, T c) {
  if constexpr (std::is_same<T, float>::value) return __builtin_fmaf(a, b, c);
  else if constexpr (std::is_same<T, double>::value) return __builtin_fma(a, b, c);
  else if constexpr (sizeof(T) == 2) return T(static_cast<float>(static_cast<double>(float(a)) * float(b) + float(c)));
  else return T{fma_(a.low, b.low, c.low), fma_(a.high, b.high, c.high)};
}
template <class T>
__forceinline__ auto wide(T a, T b) {
  using W = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed<T>::value, int32_t, uint32_t>,
                               std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>>;
  return static_cast<W>(static_cast<W>(a) * b);
}
template <class T>
__forceinline__ T hi(T a, T b) {
  if constexpr (sizeof(T) == 8)
    return static_cast<T>(static_cast<std::conditional_t<std::is_signed<T>::value, __int128,
        unsigned __int128>>(a) * b >> 64);
  else
    return static_cast<T>(wide(a, b) >> 8 * sizeof(T));
}
template <class T>
__forceinline__ T min_(T a, T b) {
  if constexpr (std::is_integral<T>::value) return a < b ? a : b;
  else if constexpr (std::is_same<T, double>::value) return fmin(a, b);
  else if constexpr (sizeof(T) == 4 && !std::is_same<T, float>::value) return T{fminf(a.low, b.low), fminf(a.high,
      b.high)};
  else return T(fminf(a, b));
}
template <class T>
__forceinline__ T max_(T a, T b) {
  if constexpr (std::is_integral<T>::value) return a > b ? a : b;
  else if constexpr (std::is_same<T, double>::value) return fmax(a, b);
  else if constexpr (sizeof(T) == 4 && !std::is_same<T, float>::value) return T{fmaxf(a.low, b.low), fmaxf(a.high,
      b.high)};
  else return T(fmaxf(a, b));
}
template <class T>
__forceinline__ T div_(T a, T b) {
  if constexpr (std::is_integral<T>::value) {
    if (b == 0) return static_cast<T>(~T(0));
  }
  return a / b;
}
template <class T>
__forceinline__ T rem_(T a, T b) {
  return b ? a % b : a;
}
template <class T>
__forceinline__ T shl_(T a, uint32_t by) {
  return by >= 8 * sizeof(T) ? T(0) : static_cast<T>(a << by);
}
template <class T>
__forceinline__ T shr_(T a, uint32_t by) {
  if (by >= 8 * sizeof(T)) return std::is_signed<T>::value && a < 0 ? static_cast<T>(-1) : T(0);
  return static_cast<T>(a >> by);
}
template <class T>
__forceinline__ T abs_(T a) {
  return a < 0 ? static_cast<T>(-a) : a;
}
__forceinline__ float abs_(float a) { return fabsf(a); }
__forceinline__ double abs_(double a) { return fabs(a); }
template <class T>
__forceinline__ T neg_(T a) {
  return static_cast<T>(-a);
}
template <bool b>
__forceinline__ Narrow16Pair<b> abs_(Narrow16Pair<b> a) { return {fabsf(a.low), fabsf(a.high)}; }
template <bool b>
__forceinline__ Narrow16Pair<b> neg_(Narrow16Pair<b> a) { return {-float(a.low), -float(a.high)}; }
template <class T>
__forceinline__ T not_(T a) {
  return static_cast<T>(~a);
}
__forceinline__ bool not_(bool a) { return !a; }
template <class T>
__forceinline__ uint32_t popc_(T a) {
  return static_cast<uint32_t>(__builtin_popcountll(static_cast<std::make_unsigned_t<T>>(a)));
}
template <class T>
__forceinline__ uint32_t clz_(T a) {
  return a ? static_cast<uint32_t>(__builtin_clzll(static_cast<std::make_unsigned_t<T>>(a))) - (64 - 8 * sizeof(T))
           : static_cast<uint32_t>(8 * sizeof(T));
}
template <class T>
__forceinline__ uint32_t bfind_(T a) {
  if (std::is_signed<T>::value && a < 0) a = static_cast<T>(~a);
  return a ? static_cast<uint32_t>(8 * sizeof(T)) - 1 - clz_(a) : 0xffffffffu;
}
template <class T>
__forceinline__ T brev_(T a) {
  T r = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); ++i) r |= static_cast<T>((a >> i & 1) << (8 * sizeof(T) - 1 - i));
  return r;
}
template <class T>
__forceinline__ T rcp_(T a) {
  return T(1) / a;
}
__forceinline__ float sqrt_(float a) { return sqrtf(a); }
__forceinline__ double sqrt_(double a) { return sqrt(a); }
__forceinline__ float rsqrt_(float a) { return rsqrtf(a); }
__forceinline__ double rsqrt_(double a) { return rsqrt(a); }
#define TS_APPROXIMATE(name, f)                                                      \
  __forceinline__ float name##_(float a) { return f(a); }                            \
  template <bool b>                                                                  \
  __forceinline__ Narrow16<b> name##_(Narrow16<b> a) { return f(float(a)); }         \
  template <bool b>                                                                  \
  __forceinline__ Narrow16Pair<b> name##_(Narrow16Pair<b> a) { return {f(float(a.low)), f(float(a.high))}; }
TS_APPROXIMATE(ex2, exp2f)
TS_APPROXIMATE(lg2, log2f)
TS_APPROXIMATE(sin, sinf)
TS_APPROXIMATE(cos, cosf)
TS_APPROXIMATE(tanh, tanhf)
#undef TS_APPROXIMATE

__forceinline__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t r = 0;
  for (uint32_t i = 0; i < 8; ++i)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
__forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }
template <class T>
__forceinline__ T bfe(T a, uint32_t at, uint32_t count) {
  const uint32_t bits = 8 * sizeof(T);
  at &= 255, count &= 255;
  if (!count) return 0;
  const T top = std::is_signed<T>::value ? shr_(a, min_(at + count - 1, bits - 1)) & 1 : 0;
  const T value = shr_(static_cast<T>(static_cast<std::make_unsigned_t<T>>(a)), at);
  if (count >= bits) return value;
  const T mask = static_cast<T>((T(1) << count) - 1);
  return static_cast<T>((value & mask) | (top ? ~mask : 0));
}
template <class T>
__forceinline__ T bfi(T a, T b, uint32_t at, uint32_t count) {
  using U = std::make_unsigned_t<T>;
  at &= 255, count &= 255;
  const U ones = count >= 8 * sizeof(T) ? ~U(0) : static_cast<U>((U(1) << count) - 1), mask = shl_(ones, at);
  return static_cast<T>((shl_(static_cast<U>(a), at) & mask) | (static_cast<U>(b) & ~mask));
}
template <class T>
__forceinline__ T sad(T a, T b, T c) {
  return static_cast<T>(c + (a > b ? a - b : b - a));
}
__forceinline__ uint32_t shf_l(uint32_t low, uint32_t high, uint32_t by, bool wrap) {
  by = wrap ? by & 31 : by > 32 ? 32 : by;
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << by >> 32);
}
__forceinline__ uint32_t shf_r(uint32_t low, uint32_t high, uint32_t by, bool wrap) {
  by = wrap ? by & 31 : by > 32 ? 32 : by;
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> by);
}
template <class A, class B>
__forceinline__ int32_t dp4a(A a, B b, int32_t c) {
  for (int i = 0; i < 4; ++i) {
    const auto left = std::is_signed<A>::value ? static_cast<int8_t>(a >> 8 * i) : static_cast<uint8_t>(a >> 8 * i);
    const auto right = std::is_signed<B>::value ? static_cast<int8_t>(b >> 8 * i) : static_cast<uint8_t>(b >> 8 * i);
    c += (std::is_signed<A>::value ? static_cast<int8_t>(left) : static_cast<uint8_t>(left)) *
         (std::is_signed<B>::value ? static_cast<int8_t>(right) : static_cast<uint8_t>(right));
  }
  return c;
}

// `c` holds the last lane of the segment and the bits of the lane that stay, as PTX has it.
inline uint32_t shfl(
    ShuffleKind kind, uint32_t value, uint32_t by, uint32_t c, uint32_t mask, bool* valid, TS_LINE) {
  const int lane = static_cast<int>(ts_lane()), clamp = static_cast<int>(c & 31), keep = static_cast<int>(c >> 8 & 31);
  const int last = (lane & keep) | (clamp & ~keep), first = lane & keep, b = static_cast<int>(by & 31);
  int from = kind == UP ? lane - b : kind == DOWN ? lane + b : kind == XOR ? lane ^ b : first | (b & ~keep);
  *valid = kind == UP ? from >= last : from <= last;
  if (!*valid) from = lane;
  Offer offer = {value, 0, from & 31, 0, line, file, "shfl.sync"};
  ts_warp(mask, shuffle_combine, &offer, "shfl.sync", line, file);
  return static_cast<uint32_t>(offer.result);
}

inline void barrier(uint32_t number, uint32_t count, bool waits, TS_LINE) {
  if (number == 0 && waits && (count == 0 || count == threads())) ts_syncthreads(TS_SYNC, 0, line, file);
  else ts_named_barrier(number, count ? count : threads(), waits, line, file);
}

struct Tf32 {};
struct E4m3 {};
struct E5m2 {};
template <class T>
struct Element {  // of a register: how many, and each as a float, a double or an int
  static constexpr int count = 4 / sizeof(T);
  using Sum = int32_t;
  static Sum of(uint32_t word, int i) { return static_cast<T>(word >> 8 * i); }
};
template <bool brain>
struct Element<Narrow16<brain>> {
  static constexpr int count = 2;
  using Sum = float;
  static Sum of(uint32_t word, int i) { return widen(static_cast<uint16_t>(word >> 16 * i), brain); }
};
template <>
struct Element<Tf32> {
  static constexpr int count = 1;
  using Sum = float;
  static Sum of(uint32_t word, int) { return tf32(word); }
};
template <>
struct Element<double> {
  static constexpr int count = 1;
  using Sum = double;
  static Sum of(double word, int) { return word; }
};
template <>
struct Element<E5m2> {
  static constexpr int count = 4;
  using Sum = float;
  static Sum of(uint32_t word, int i) { return widen(static_cast<uint16_t>((word >> 8 * i & 255) << 8), false); }
};
template <>
struct Element<E4m3> {
  static constexpr int count = 4;
  using Sum = float;
  static Sum of(uint32_t word, int i) {
    const uint32_t byte = word >> 8 * i & 255, rest = byte & 127;
    if (rest == 127) return bit_cast<float>(0x7fc00000u);
    const float value = bit_cast<float>(rest << 20) * 0x1p120f;
    return byte & 128 ? -value : value;
  }
};

template <class Word>
struct MmaOffer {
  Word* d;
  const Word *a, *b, *c;
};

template <int M, int N, int K, class A, class B, class C, class D, bool saturate, class Word>
TS_PLAIN void mma_combine(void** lanes, uint32_t) {
  whole(lanes, "mma");
  using Sum = typename Element<A>::Sum;
  constexpr int E = Element<A>::count, RA = M * K / 32 / E, RB = K * N / 32 / E;
  Sum a[M][K], b[K][N], sum[M][N];
  constexpr bool packed_c = std::is_same<C, Half>::value, packed_d = std::is_same<D, Half>::value;
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOffer<Word>& mine = *static_cast<MmaOffer<Word>*>(lanes[lane]);
    const int group = lane / 4, member = lane % 4;
    for (int r = 0; r < RA; ++r)
      for (int i = 0; i < E; ++i) {
        const int row = M == 16 ? group + 8 * (r % 2) : group, step = M == 16 ? r / 2 : r;
        a[row][E * member + 4 * E * step + i] = Element<A>::of(mine.a[r], i);
      }
    for (int r = 0; r < RB; ++r)
      for (int i = 0; i < E; ++i) b[E * member + 4 * E * r + i][group] = Element<B>::of(mine.b[r], i);
    for (int r = 0; r < M * N / 32; ++r) {
      const int row = group + 8 * (r / 2), col = 2 * member + r % 2;
      if constexpr (packed_c) sum[row][col] =
          static_cast<Sum>(Element<Half>::of(static_cast<uint32_t>(mine.c[r / 2]), r % 2));
      else sum[row][col] = as<Sum>(mine.c[r]);
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      if constexpr (std::is_same<Sum, int32_t>::value) {
        int64_t total = sum[i][j];
        for (int k = 0; k < K; ++k) total += static_cast<int64_t>(a[i][k]) * b[k][j];
        if (saturate) total = total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total;
        sum[i][j] = static_cast<int32_t>(total);
      } else {
        for (int k = 0; k < K; ++k) sum[i][j] += a[i][k] * b[k][j];
      }
    }
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOffer<Word>& mine = *static_cast<MmaOffer<Word>*>(lanes[lane]);
    for (int r = 0; r < M * N / 32; ++r) {
      const Sum value = sum[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
      if constexpr (packed_d) {
        const uint32_t bits = to_half(static_cast<float>(value)), before = static_cast<uint32_t>(mine.d[r / 2]);
        mine.d[r / 2] = r % 2 ? (before & 0xffffu) | bits << 16 : bits;
      } else {
        mine.d[r] = as<Word>(value);
      }
    }
  }
}
template <int M, int N, int K, class A, class B, class C, class D, bool saturate, class Word>
TS_PLAIN void mma(Word* d, const Word* a, const Word* b, const Word* c, TS_LINE) {
  MmaOffer<Word> mine = {d, a, b, c};
  ts_warp(0xffffffffu, mma_combine<M, N, K, A, B, C, D, saturate, Word>, &mine, "mma", line, file);
}

}  // namespace ptx

struct RowsOut {
  void* row;
  const unsigned* values;
};
template <int count, bool transposed>
TS_PLAIN void stmatrix_combine(void** lanes, uint32_t) {
  whole(lanes, "stmatrix");
  for (int matrix = 0; matrix < count; ++matrix)
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 2; ++i) {
        const int along = 2 * (lane % 4) + i, row = transposed ? along : lane / 4, col = transposed ? lane / 4 : along;
        static_cast<uint16_t*>(static_cast<RowsOut*>(lanes[8 * matrix + row])->row)[col] =
            static_cast<uint16_t>(static_cast<RowsOut*>(lanes[lane])->values[matrix] >> 16 * i);
      }
}
template <int count, bool transposed>
TS_PLAIN void stmatrix(void* row, const unsigned* values, TS_LINE) {
  if (static_cast<int>(ts_lane()) < 8 * count) ts_check(row, 16, 1, 16, TS_PC);
  RowsOut mine = {row, values};
  ts_warp(0xffffffffu, stmatrix_combine<count, transposed>, &mine, "stmatrix", line, file);
}

TS_PLAIN inline void movmatrix_combine(void** lanes, uint32_t) {
  whole(lanes, "movmatrix");
  uint16_t m[8][8];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 2; ++i)
      m[lane / 4][2 * (lane % 4) + i] = static_cast<uint16_t>(static_cast<Offer*>(lanes[lane])->value >> 16 * i);
  for (int lane = 0; lane < 32; ++lane)
    static_cast<Offer*>(lanes[lane])->result =
        m[2 * (lane % 4)][lane / 4] | static_cast<uint32_t>(m[2 * (lane % 4) + 1][lane / 4]) << 16;
}
TS_PLAIN inline uint32_t movmatrix(uint32_t value, TS_LINE) {
  Offer offer = {value, 0, 0, 0, line, file, "movmatrix"};
  ts_warp(0xffffffffu, movmatrix_combine, &offer, "movmatrix", line, file);
  return static_cast<uint32_t>(offer.result);
}

}  // namespace touchstone
