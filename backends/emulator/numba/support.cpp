// What kernels compiled by Numba call, beyond the engine itself: NVVM's intrinsics, libdevice, and a little PTX.
// `site` is a number of the front end's table of source lines. It stands for the pc in the engine's reports.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "engine.h"

#define TS extern "C" __attribute__((visibility("default")))

namespace {

struct Site {
  const char* file;
  int64_t line;
};
const Site* sites;

const char* file_of(uint64_t site) { return sites[site].file; }
int line_of(uint64_t site) { return static_cast<int>(sites[site].line); }

struct Offer {
  uint64_t value, result;
  int lane;
  uint64_t site;
  const char* what;
};

template <int mode>
void shuffle(void** lanes, uint32_t mask) {
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    Offer& mine = *static_cast<Offer*>(lanes[i]);
    if (!lanes[mine.lane]) ts_fail_lane(mask, i, mine.lane, mine.what, line_of(mine.site), file_of(mine.site));
    mine.result = static_cast<Offer*>(lanes[mine.lane])->value;
  }
}

template <int mode>
void vote(void** lanes, uint32_t) {
  uint32_t ballot = 0, present = 0;
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    present |= 1u << i;
    if (static_cast<Offer*>(lanes[i])->value) ballot |= 1u << i;
  }
  const bool all = ballot == present, any = ballot != 0;
  const uint64_t answer = mode == 0 ? all : mode == 1 ? any : all || !any;
  for (int i = 0; i < 32; ++i)
    if (lanes[i]) static_cast<Offer*>(lanes[i])->result = mode == 3 ? ballot : answer << 32;
}

template <bool every>
void match(void** lanes, uint32_t mask) {
  uint32_t present = 0;
  bool same = true;
  uint64_t first = 0;
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    Offer& mine = *static_cast<Offer*>(lanes[i]);
    if (!present) first = mine.value;
    same &= mine.value == first;
    present |= 1u << i;
    uint32_t equal = 0;
    for (int j = 0; j < 32; ++j)
      if (lanes[j] && static_cast<Offer*>(lanes[j])->value == mine.value) equal |= 1u << j;
    mine.result = equal;
  }
  (void)mask;
  if (!every) return;
  for (int i = 0; i < 32; ++i)
    if (lanes[i]) static_cast<Offer*>(lanes[i])->result = same ? present | uint64_t(1) << 32 : 0;
}

uint64_t meet(uint32_t mask, ts_combine combine, uint64_t value, int lane, const char* what, uint64_t site) {
  Offer offer = {value, 0, lane, site, what};
  ts_warp(mask, combine, &offer, what, line_of(site), file_of(site));
  return offer.result;
}

template <class T, class Next>
T update(T* p, uint64_t site, Next next, bool exchanges = false) {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t,
               std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
  ts_check(p, sizeof(T), exchanges ? 3 : 2, sizeof(T), site);
  Word* word = reinterpret_cast<Word*>(p);
  Word before = __atomic_load_n(word, __ATOMIC_SEQ_CST), after;
  T old, fresh;
  do {
    std::memcpy(&old, &before, sizeof(T));
    fresh = next(old);
    std::memcpy(&after, &fresh, sizeof(T));
  } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  ts_atomic_done(before != after, site);
  return old;
}

}  // namespace

TS void tsn_sites(const void* table) { sites = static_cast<const Site*>(table); }

TS int tsn_line(uint64_t site) { return line_of(site); }
TS const char* tsn_file(uint64_t site) { return file_of(site); }

TS int tsn_barrier(int kind, int predicate, uint64_t site) {
  return ts_syncthreads(kind, predicate, line_of(site), file_of(site));
}
TS void tsn_syncwarp(uint32_t mask, uint64_t site) {
  ts_warp(mask, nullptr, nullptr, "syncwarp", line_of(site), file_of(site));
}
TS uint32_t tsn_activemask(uint64_t site) { return ts_active_mask(line_of(site), file_of(site)); }
TS void tsn_syncgrid(uint64_t site) { ts_syncgrid(line_of(site), file_of(site)); }
TS void tsn_sleep(uint32_t) { ts_pause(); }

TS void tsn_raise(int code) { ts_fault(("exception " + std::to_string(code)).c_str(), 0); }

TS uint64_t tsn_shuffle(uint32_t mask, uint32_t mode, uint32_t value, uint32_t b, uint32_t c, uint64_t site) {
  const int lane = static_cast<int>(ts_lane()), by = static_cast<int>(b & 31), clamp = static_cast<int>(c & 31);
  const int segment = static_cast<int>(c >> 8 & 31), low = lane & segment, high = low | (clamp & ~segment);
  int from = mode == 0 ? (low | (by & ~segment)) : mode == 1 ? lane - by : mode == 2 ? lane + by : lane ^ by;
  const bool within = mode == 1 ? from >= high : from <= high;
  if (!within) from = lane;
  static const ts_combine combines[] = {shuffle<0>, shuffle<1>, shuffle<2>, shuffle<3>};
  static const char* const names[] = {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"};
  return (meet(mask, combines[mode & 3], value, from & 31, names[mode & 3], site) & 0xffffffffu) | uint64_t(within)
                                                                                                       << 32;
}
TS uint64_t tsn_vote(uint32_t mask, uint32_t mode, uint32_t predicate, uint64_t site) {
  static const ts_combine combines[] = {vote<0>, vote<1>, vote<2>, vote<3>};
  static const char* const names[] = {"all_sync", "any_sync", "eq_sync", "ballot_sync"};
  return meet(mask, combines[mode & 3], predicate, 0, names[mode & 3], site);
}
TS uint64_t tsn_match(uint32_t mask, uint32_t every, uint64_t value, uint64_t site) {
  return every ? meet(mask, match<true>, value, 0, "match_all_sync", site)
               : meet(mask, match<false>, value, 0, "match_any_sync", site);
}
TS void tsn_read_range(const void* p, uint64_t bytes, uint64_t site) { if (bytes) ts_check(p, bytes, 0, 1, site); }
TS void tsn_write_range(const void* p, uint64_t bytes, uint64_t site) { if (bytes) ts_check(p, bytes, 1, 1, site); }

// cp.async of 16 bytes, done at once.
TS void tsn_copy16(void* shared, const void* global, int bytes, uint64_t site) {
  if (bytes < 0 || bytes > 16) ts_fault("cp.async of more than 16 or less than 0 bytes", site);
  unsigned char value[16] = {};
  if (bytes) {
    ts_check(global, bytes, 0, 16, site);
    std::memcpy(value, global, bytes);
  }
  ts_check(shared, 16, 1, 16, site);
  std::memcpy(shared, value, 16);
}

#define INTEGER(bits, T, U) \
  TS U tsn_add_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return U(o + v); }); \
  } \
  TS U tsn_sub_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return U(o - v); }); \
  } \
  TS U tsn_and_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return U(o & v); }); \
  } \
  TS U tsn_or_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return U(o | v); }); \
  } \
  TS U tsn_xor_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return U(o ^ v); }); \
  } \
  TS U tsn_xchg_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U) { return v; }, true); \
  } \
  TS U tsn_max_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return T(v) > T(o) ? v : o; }); \
  } \
  TS U tsn_min_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return T(v) < T(o) ? v : o; }); \
  } \
  TS U tsn_umax_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return v > o ? v : o; }); \
  } \
  TS U tsn_umin_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return v < o ? v : o; }); \
  } \
  TS U tsn_inc_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return o >= v ? U(0) : U(o + 1); }); \
  } \
  TS U tsn_dec_i##bits(U* p, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return o == 0 || o > v ? v : U(o - 1); }); \
  } \
  TS U tsn_cas_i##bits(U* p, U c, U v, uint64_t s) { \
    return update(p, s, [=](U o) { return o == c ? v : o; }); \
  }
INTEGER(8, int8_t, uint8_t)
INTEGER(16, int16_t, uint16_t)
INTEGER(32, int32_t, uint32_t)
INTEGER(64, int64_t, uint64_t)

// Numba's rules: max and min leave all as it is where either is NaN; the nan forms take the other.
#define REAL(name, T) \
  TS T tsn_add_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return o + v; }); \
  } \
  TS T tsn_sub_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return o - v; }); \
  } \
  TS T tsn_max_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return o < v ? v : o; }); \
  } \
  TS T tsn_min_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return o > v ? v : o; }); \
  } \
  TS T tsn_nanmax_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return v == v && !(o >= v) ? v : o; }); \
  } \
  TS T tsn_nanmin_##name(T* p, T v, uint64_t s) { \
    return update(p, s, [=](T o) { return v == v && !(o <= v) ? v : o; }); \
  }
REAL(float, float)
REAL(double, double)

// print() in a kernel: C's format and a buffer in which every argument stands at a multiple of its size.
TS int tsn_vprintf(const char* format, const char* values) {
  std::string out;
  uint64_t at = 0;
  auto take = [&](auto value) {
    at = (at + sizeof value - 1) / sizeof value * sizeof value;
    std::memcpy(&value, values + at, sizeof value);
    at += sizeof value;
    return value;
  };
  for (const char* c = format; *c; ++c) {
    if (*c != '%') {
      out += *c;
      continue;
    }
    std::string spec = "%";
    for (++c; *c && !std::strchr("diouxXeEfgGscp%", *c); ++c) spec += *c;
    spec += *c;
    char text[512] = "";
    const bool wide = spec.find('l') != std::string::npos;
    if (*c == '%') std::strcpy(text, "%");
    else if (*c == 's') std::snprintf(text, sizeof text, spec.c_str(), take(static_cast<const char*>(nullptr)));
    else if (std::strchr("eEfgG", *c)) std::snprintf(text, sizeof text, spec.c_str(), take(0.0));
    else if (wide || *c == 'p') std::snprintf(text, sizeof text, spec.c_str(), take(0ll));
    else std::snprintf(text, sizeof text, spec.c_str(), take(0));
    out += text;
    if (!*c) break;
  }
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

namespace {
float from_half(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
template <class T>
uint16_t to_half(T value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
template <class T>
T saturated(double value) {
  if (value != value) return 0;
  value = std::nearbyint(value);
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}
}  // namespace

// By way of a float rounded to odd, so that the second rounding is the only one.
TS uint16_t tsn_f64_to_bfloat(double v) {
  if (v != v) return 0x7fff;
  float f = static_cast<float>(v);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  const double back = f;
  if (back != v && std::isfinite(f)) {
    if (std::fabs(back) > std::fabs(v)) --bits;
    bits |= 1;
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

TS float tsn_half_to_f32(uint16_t h) { return from_half(h); }
TS double tsn_half_to_f64(uint16_t h) { return from_half(h); }
TS uint16_t tsn_f32_to_half(float v) { return to_half(v); }
TS uint16_t tsn_f64_to_half(double v) { return to_half(v); }
#define HALF_INTEGER(name, T)                                                  \
  TS T tsn_half_to_##name(uint16_t h) { return saturated<T>(from_half(h)); }   \
  TS uint16_t tsn_##name##_to_half(T v) { return to_half(v); }
HALF_INTEGER(s8, int8_t)
HALF_INTEGER(u8, uint8_t)
HALF_INTEGER(s16, int16_t)
HALF_INTEGER(u16, uint16_t)
HALF_INTEGER(s32, int32_t)
HALF_INTEGER(u32, uint32_t)
HALF_INTEGER(s64, int64_t)
HALF_INTEGER(u64, uint64_t)

// libdevice, where the C library has no function of the name.
TS int __nv_brev(int v) {
  uint32_t x = static_cast<uint32_t>(v), r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return static_cast<int>(r);
}
TS int64_t __nv_brevll(int64_t v) {
  uint64_t x = static_cast<uint64_t>(v), r = 0;
  for (int i = 0; i < 64; ++i) r |= (x >> i & 1) << (63 - i);
  return static_cast<int64_t>(r);
}
TS int __nv_ffs(int v) { return __builtin_ffs(v); }
TS int __nv_ffsll(int64_t v) { return __builtin_ffsll(v); }
TS int __nv_clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
TS int __nv_clzll(int64_t v) { return v ? __builtin_clzll(static_cast<uint64_t>(v)) : 64; }
TS int __nv_popc(int v) { return __builtin_popcount(static_cast<unsigned>(v)); }
TS int __nv_popcll(int64_t v) { return __builtin_popcountll(static_cast<uint64_t>(v)); }
TS int __nv_mulhi(int a, int b) { return static_cast<int>(int64_t(a) * b >> 32); }
TS int __nv_umulhi(int a, int b) { return static_cast<int>(uint64_t(uint32_t(a)) * uint32_t(b) >> 32); }
TS int64_t __nv_mul64hi(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<__int128>(a) * b >> 64); }
TS int64_t __nv_umul64hi(uint64_t a, uint64_t b) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
TS int __nv_mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
TS int __nv_abs(int v) { return v < 0 ? -v : v; }
TS int64_t __nv_llabs(int64_t v) { return v < 0 ? -v : v; }
TS int __nv_max(int a, int b) { return a > b ? a : b; }
TS int __nv_min(int a, int b) { return a < b ? a : b; }
TS int __nv_umax(unsigned a, unsigned b) { return static_cast<int>(a > b ? a : b); }
TS int __nv_umin(unsigned a, unsigned b) { return static_cast<int>(a < b ? a : b); }
TS int64_t __nv_llmax(int64_t a, int64_t b) { return a > b ? a : b; }
TS int64_t __nv_llmin(int64_t a, int64_t b) { return a < b ? a : b; }
TS uint64_t __nv_ullmax(uint64_t a, uint64_t b) { return a > b ? a : b; }
TS uint64_t __nv_ullmin(uint64_t a, uint64_t b) { return a < b ? a : b; }
TS int __nv_float_as_int(float v) { int r; std::memcpy(&r, &v, 4); return r; }
TS float __nv_int_as_float(int v) { float r; std::memcpy(&r, &v, 4); return r; }
TS int64_t __nv_double_as_longlong(double v) { int64_t r; std::memcpy(&r, &v, 8); return r; }
TS double __nv_longlong_as_double(int64_t v) { double r; std::memcpy(&r, &v, 8); return r; }
TS float __nv_rsqrtf(float v) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(v))); }
TS double __nv_rsqrt(double v) { return 1.0 / std::sqrt(v); }
TS float __nv_rcbrtf(float v) { return static_cast<float>(1.0 / std::cbrt(static_cast<double>(v))); }
TS double __nv_rcbrt(double v) { return 1.0 / std::cbrt(v); }
TS float __nv_saturatef(float v) { return !(v > 0.0f) ? 0.0f : v > 1.0f ? 1.0f : v; }
TS float __nv_fdividef(float a, float b) { return a / b; }
TS float __nv_fast_fdividef(float a, float b) { return a / b; }
TS float __nv_powif(float a, int n) { return std::pow(a, static_cast<float>(n)); }
TS double __nv_powi(double a, int n) { return std::pow(a, static_cast<double>(n)); }
TS float __nv_exp10f(float v) { return static_cast<float>(std::pow(10.0, static_cast<double>(v))); }
TS float __nv_fast_exp10f(float v) { return __nv_exp10f(v); }
TS double __nv_exp10(double v) { return static_cast<double>(std::pow(10.0L, static_cast<long double>(v))); }
TS float __nv_sinpif(float v) {
  return static_cast<float>(std::sin(M_PI * std::remainder(static_cast<double>(v), 2.0)));
}
TS float __nv_cospif(float v) {
  return static_cast<float>(std::cos(M_PI * std::remainder(static_cast<double>(v), 2.0)));
}
TS double __nv_sinpi(double v) { return std::sin(M_PI * std::remainder(v, 2.0)); }
TS double __nv_cospi(double v) { return std::cos(M_PI * std::remainder(v, 2.0)); }
TS float __nv_normcdff(float v) { return static_cast<float>(0.5 * std::erfc(-static_cast<double>(v) * M_SQRT1_2)); }
TS double __nv_normcdf(double v) { return 0.5 * std::erfc(-v * M_SQRT1_2); }
TS int __nv_isnanf(float v) { return std::isnan(v); }
TS int __nv_isnand(double v) { return std::isnan(v); }
TS int __nv_isinff(float v) { return std::isinf(v); }
TS int __nv_isinfd(double v) { return std::isinf(v); }
TS int __nv_finitef(float v) { return std::isfinite(v); }
TS int __nv_isfinited(double v) { return std::isfinite(v); }
TS int __nv_signbitf(float v) { return std::signbit(v); }
TS int __nv_signbitd(double v) { return std::signbit(v); }
TS float __nv_fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
TS double __nv_fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

// Numba's runtime: arrays that kernels make, on the device's heap, each with a count of its references.
using Destructor = void (*)(void* data, size_t size, void* info);
struct MemInfo {
  std::atomic<size_t> count;
  Destructor destructor;
  void* info;
  void* data;
  size_t size;
  void* owned;  // freed with it; null where the data lie behind this, in one allocation
};

TS void* NRT_Allocate(size_t size) { return ts_heap_new(size); }
TS void NRT_Free(void* memory) { ts_heap_free(memory, 0); }
TS void* NRT_MemInfo_data_fast(MemInfo* array) { return array->data; }
TS MemInfo* NRT_MemInfo_new(void* data, size_t size, Destructor destructor, void* info) {
  void* memory = ts_heap_new(sizeof(MemInfo));
  return memory ? new (memory) MemInfo{{1}, destructor, info, data, size, nullptr} : nullptr;
}
TS MemInfo* NRT_MemInfo_alloc_aligned(size_t size, unsigned align) {
  char* memory = static_cast<char*>(ts_heap_new(sizeof(MemInfo) + size + align));
  if (!memory) return nullptr;
  const uint64_t data = reinterpret_cast<uint64_t>(memory + sizeof(MemInfo)) + align - 1;
  return new (memory) MemInfo{{1}, nullptr, nullptr, reinterpret_cast<void*>(data - data % align), size, nullptr};
}
TS MemInfo* NRT_MemInfo_new_varsize_dtor(size_t size, Destructor destructor) {
  void* data = ts_heap_new(size);
  MemInfo* array = data ? NRT_MemInfo_new(data, size, destructor, nullptr) : nullptr;
  if (array) array->owned = data;
  return array;
}
TS MemInfo* NRT_MemInfo_new_varsize(size_t size) { return NRT_MemInfo_new_varsize_dtor(size, nullptr); }
TS void NRT_MemInfo_call_dtor(MemInfo* array) {
  if (array->destructor) array->destructor(array->data, array->size, array->info);
  if (array->owned) NRT_Free(array->owned);
  NRT_Free(array);
}
TS void tsn_count(MemInfo* array, int64_t more) {
  if (array->count.fetch_add(more) + more == 0) NRT_MemInfo_call_dtor(array);
}
