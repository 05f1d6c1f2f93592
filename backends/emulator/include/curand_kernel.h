// cuRAND's device functions: Philox4x32-10 [Salmon et al. 2011], XORWOW [Marsaglia 2003], Sobol' sequences; the words
// and the numbers in the order in which cuRAND's own header gives them.
#pragma once

struct curandStateXORWOW {
  unsigned d, v[5];
  int boxmuller_flag, boxmuller_flag_double;
  float boxmuller_extra;
  double boxmuller_extra_double;
};
struct curandStatePhilox4_32_10 {
  uint4 ctr, output;
  uint2 key;
  unsigned STATE;
  int boxmuller_flag, boxmuller_flag_double;
  float boxmuller_extra;
  double boxmuller_extra_double;
};
struct curandStateSobol32 {
  unsigned i, x, c, direction_vectors[32];
};
struct curandStateSobol64 {
  unsigned long long i, x, c, direction_vectors[64];
};
struct curandStateScrambledSobol32 : curandStateSobol32 {};
struct curandStateScrambledSobol64 : curandStateSobol64 {};

typedef curandStateXORWOW curandStateXORWOW_t, curandState, curandState_t;
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
typedef curandStateSobol32 curandStateSobol32_t;
typedef curandStateSobol64 curandStateSobol64_t;
typedef curandStateScrambledSobol32 curandStateScrambledSobol32_t;
typedef curandStateScrambledSobol64 curandStateScrambledSobol64_t;
typedef unsigned curandDirectionVectors32_t[32];
typedef unsigned long long curandDirectionVectors64_t[64];

namespace touchstone {
namespace random {

// --- Philox ---
inline uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t even = uint64_t(0xD2511F53u) * counter.x, odd = uint64_t(0xCD9E8D57u) * counter.z;
    counter = uint4{static_cast<unsigned>(odd >> 32) ^ counter.y ^ key.x, static_cast<unsigned>(odd),
                    static_cast<unsigned>(even >> 32) ^ counter.w ^ key.y, static_cast<unsigned>(even)};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}
inline uint64_t low(const uint4& c) { return c.x | uint64_t(c.y) << 32; }
inline uint64_t high(const uint4& c) { return c.z | uint64_t(c.w) << 32; }
inline void advance(uint4& c, uint64_t low_by, uint64_t high_by) {
  const uint64_t l = low(c) + low_by, h = high(c) + high_by + (l < low_by);
  c = uint4{static_cast<unsigned>(l), static_cast<unsigned>(l >> 32), static_cast<unsigned>(h),
            static_cast<unsigned>(h >> 32)};
}

// --- XORWOW: five words of it are a linear map over bits, which is taken to its powers to skip ---
struct Bits {
  uint32_t word[5];
};
struct Map {
  Bits column[160];
};
TS_QUIET inline Bits times(const Map& m, const Bits& v) {
  Bits out = {};
  for (int i = 0; i < 160; ++i)
    if (v.word[i / 32] >> (i % 32) & 1)
      for (int w = 0; w < 5; ++w) out.word[w] ^= m.column[i].word[w];
  return out;
}
TS_QUIET inline Bits step(const Bits& v) {
  const uint32_t t = v.word[0] ^ (v.word[0] >> 2);
  return Bits{{v.word[1], v.word[2], v.word[3], v.word[4], (v.word[4] ^ (v.word[4] << 4)) ^ (t ^ (t << 1))}};
}
constexpr int SUBSEQUENCE = 67;  // the logarithm of its steps
struct Powers {
  Map of[SUBSEQUENCE + 64];
  TS_PLAIN Powers() {
    for (int i = 0; i < 160; ++i) {
      Bits one = {};
      one.word[i / 32] = 1u << (i % 32);
      of[0].column[i] = step(one);
    }
    for (int p = 1; p < SUBSEQUENCE + 64; ++p)
      for (int i = 0; i < 160; ++i) of[p].column[i] = times(of[p - 1], of[p - 1].column[i]);
  }
};
TS_PLAIN inline void skip(uint32_t* v, uint64_t count, int log_steps) {
  static const Powers powers;
  Bits bits;
  for (int w = 0; w < 5; ++w) bits.word[w] = v[w];
  for (int p = log_steps; count; ++p, count >>= 1)
    if (count & 1) bits = times(powers.of[p], bits);
  for (int w = 0; w < 5; ++w) v[w] = bits.word[w];
}

// --- from words to numbers ---
constexpr float STEP = 2.3283064e-10f;                                 // 2^-32
constexpr double STEP53 = 1.1102230246251565e-16;                      // 2^-53
inline float uniform(unsigned x) { return x * STEP + STEP / 2; }       // in (0, 1]
inline double uniform53(unsigned x, unsigned y) {
  return (x ^ (static_cast<unsigned long long>(y) << 21)) * STEP53 + STEP53 / 2;
}
inline double uniform_double(unsigned x) { return x * 2.3283064365386963e-10 + 2.3283064365386963e-10; }
inline double uniform_double(unsigned long long x) { return (x >> 11) * STEP53 + STEP53 / 2; }
inline float2 box_muller(unsigned x, unsigned y) {
  const float angle = y * (STEP * 6.2831855f) + STEP * 6.2831855f / 2, length = sqrtf(-2.0f * logf(uniform(x)));
  return float2{sinf(angle) * length, cosf(angle) * length};
}
inline double2 box_muller_double(unsigned x0, unsigned x1, unsigned y0, unsigned y1) {
  const double angle = 3.1415926535897932 * (uniform53(y0, y1) * 2), length = sqrt(-2.0 * log(uniform53(x0, x1)));
  return double2{sin(angle) * length, cos(angle) * length};
}

template <class State>
struct Words {  // two words a pair of normal numbers is made of
  static constexpr bool pairs = true;
};
template <>
struct Words<curandStateSobol32> {
  static constexpr bool pairs = false;
};
template <>
struct Words<curandStateSobol64> : Words<curandStateSobol32> {};
template <>
struct Words<curandStateScrambledSobol32> : Words<curandStateSobol32> {};
template <>
struct Words<curandStateScrambledSobol64> : Words<curandStateSobol32> {};

}  // namespace random
}  // namespace touchstone

// --- beginnings ---
inline void skipahead(unsigned long long n, curandStateXORWOW* state) {
  touchstone::random::skip(state->v, n, 0);
  state->d += 362437u * static_cast<unsigned>(n);
}
inline void skipahead_sequence(unsigned long long n, curandStateXORWOW* state) {
  touchstone::random::skip(state->v, n, touchstone::random::SUBSEQUENCE);
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                        curandStateXORWOW* state) {
  const unsigned s0 = static_cast<unsigned>(seed) ^ 0xaad26b49u, s1 = static_cast<unsigned>(seed >> 32) ^ 0xf7dcefddu;
  const unsigned t0 = 1099087573u * s0, t1 = 2591861531u * s1;
  *state = curandStateXORWOW{
      6615241u + t1 + t0,
      {123456789u + t0, 362436069u ^ t0, 521288629u + t1, 88675123u ^ t1, 5783321u + t0}, 0, 0, 0, 0};
  skipahead_sequence(subsequence, state);
  skipahead(offset, state);
}
inline void skipahead(unsigned long long n, curandStatePhilox4_32_10* state) {
  state->STATE += n & 3;
  touchstone::random::advance(state->ctr, n / 4 + state->STATE / 4, 0);
  state->STATE %= 4;
  state->output = touchstone::random::philox(state->ctr, state->key);
}
inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* state) {
  touchstone::random::advance(state->ctr, 0, n);
  state->output = touchstone::random::philox(state->ctr, state->key);
}
inline void curand_init(unsigned long long seed, unsigned long long subsequence, unsigned long long offset,
                        curandStatePhilox4_32_10* state) {
  *state = curandStatePhilox4_32_10{};
  state->key = uint2{static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)};
  skipahead_sequence(subsequence, state);
  skipahead(offset, state);
}
#define TS_SOBOL(State, Word, bits)                                                                  \
  inline void skipahead(Word n, State* state) {                                                      \
    state->i += n;                                                                                   \
    state->x = state->c;                                                                             \
    const Word gray = state->i ^ (state->i >> 1);                                                    \
    for (int b = 0; b < bits; ++b)                                                                   \
      if (gray >> b & 1) state->x ^= state->direction_vectors[b];                                    \
  }                                                                                                  \
  inline Word curand(State* state) {                                                                 \
    const Word out = state->x;                                                                       \
    int zero = 0;                                                                                    \
    while (zero < bits - 1 && (state->i >> zero & 1)) ++zero;                                        \
    state->x ^= state->direction_vectors[zero];                                                      \
    ++state->i;                                                                                      \
    return out;                                                                                      \
  }
#define TS_SOBOL_BEGIN(State, Word, bits, ...)                                                       \
  TS_SOBOL(State, Word, bits)                                                                        \
  template <class Vectors>                                                                           \
  inline void curand_init(Vectors vectors, __VA_ARGS__ Word offset, State* state) {
#define TS_SOBOL_END(bits, start)                                                                    \
    state->i = 0;                                                                                    \
    state->c = start;                                                                                \
    for (int b = 0; b < bits; ++b) state->direction_vectors[b] = vectors[b];                         \
    skipahead(offset, state);                                                                        \
  }
TS_SOBOL_BEGIN(curandStateSobol32, unsigned, 32, ) TS_SOBOL_END(32, 0)
TS_SOBOL_BEGIN(curandStateSobol64, unsigned long long, 64, ) TS_SOBOL_END(64, 0)
TS_SOBOL_BEGIN(curandStateScrambledSobol32, unsigned, 32, unsigned scramble,) TS_SOBOL_END(32, scramble)
TS_SOBOL_BEGIN(curandStateScrambledSobol64, unsigned long long, 64, unsigned long long scramble,)
TS_SOBOL_END(64, scramble)
#undef TS_SOBOL
#undef TS_SOBOL_BEGIN
#undef TS_SOBOL_END

// --- words ---
inline unsigned curand(curandStateXORWOW* state) {
  unsigned* v = state->v;
  const unsigned t = v[0] ^ (v[0] >> 2);
  v[0] = v[1];
  v[1] = v[2];
  v[2] = v[3];
  v[3] = v[4];
  v[4] = (v[4] ^ (v[4] << 4)) ^ (t ^ (t << 1));
  state->d += 362437u;
  return v[4] + state->d;
}
inline unsigned curand(curandStatePhilox4_32_10* state) {
  const unsigned words[4] = {state->output.x, state->output.y, state->output.z, state->output.w};
  const unsigned out = words[state->STATE++ & 3];
  if (state->STATE == 4) {
    touchstone::random::advance(state->ctr, 1, 0);
    state->output = touchstone::random::philox(state->ctr, state->key);
    state->STATE = 0;
  }
  return out;
}
inline uint4 curand4(curandStatePhilox4_32_10* state) {
  const uint4 a = state->output;
  touchstone::random::advance(state->ctr, 1, 0);
  state->output = touchstone::random::philox(state->ctr, state->key);
  const uint4 b = state->output;
  const unsigned words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, *from = words + (state->STATE & 3);
  return uint4{from[0], from[1], from[2], from[3]};
}

// --- numbers ---
template <class State>
inline float curand_uniform(State* state) {
  const auto word = curand(state);
  return touchstone::random::uniform(static_cast<unsigned>(sizeof(word) == 8 ? word >> (sizeof(word) * 4) : word));
}
template <class State>
inline double curand_uniform_double(State* state) {
  if constexpr (std::is_same<State, curandStateXORWOW>::value) {
    const unsigned x = curand(state), y = curand(state);
    return touchstone::random::uniform53(x, y);
  } else {
    return touchstone::random::uniform_double(curand(state));
  }
}
template <class State>
inline float2 curand_normal2(State* state) {
  const unsigned x = curand(state), y = curand(state);
  return touchstone::random::box_muller(x, y);
}
template <class State>
inline double2 curand_normal2_double(State* state) {
  const unsigned x0 = curand(state), x1 = curand(state), y0 = curand(state), y1 = curand(state);
  return touchstone::random::box_muller_double(x0, x1, y0, y1);
}
namespace touchstone {
namespace random {
// One of a pair, whose other half is kept for the next call of the same `Kind`: 1 normal, 2 log-normal.
template <int Kind, class Number, class Make>
inline Number half_of_pair(int& flag, Number& extra, Make make) {
  if (flag == Kind) {
    flag = 0;
    return extra;
  }
  const auto both = make();
  flag = Kind;
  extra = both.y;
  return both.x;
}
}  // namespace random
}  // namespace touchstone

template <class State>
inline float curand_normal(State* state) {
  if constexpr (touchstone::random::Words<State>::pairs)
    return touchstone::random::half_of_pair<1>(state->boxmuller_flag, state->boxmuller_extra, [=] { return curand_normal2(state); });
  else
    return static_cast<float>(touchstone::quantile(curand_uniform(state)));
}
template <class State>
inline double curand_normal_double(State* state) {
  if constexpr (touchstone::random::Words<State>::pairs)
    return touchstone::random::half_of_pair<1>(
        state->boxmuller_flag_double, state->boxmuller_extra_double, [=] { return curand_normal2_double(state); });
  else
    return touchstone::quantile(curand_uniform_double(state));
}
template <class State>
inline float2 curand_log_normal2(State* state, float mean, float deviation) {
  const float2 both = curand_normal2(state);
  return float2{expf(mean + deviation * both.x), expf(mean + deviation * both.y)};
}
template <class State>
inline double2 curand_log_normal2_double(State* state, double mean, double deviation) {
  const double2 both = curand_normal2_double(state);
  return double2{exp(mean + deviation * both.x), exp(mean + deviation * both.y)};
}
template <class State>
inline float curand_log_normal(State* state, float mean, float deviation) {
  if constexpr (touchstone::random::Words<State>::pairs)
    return touchstone::random::half_of_pair<2>(state->boxmuller_flag, state->boxmuller_extra, [=] { return curand_log_normal2(state, mean, deviation); });
  else
    return expf(mean + deviation * curand_normal(state));
}
template <class State>
inline double curand_log_normal_double(State* state, double mean, double deviation) {
  if constexpr (touchstone::random::Words<State>::pairs)
    return touchstone::random::half_of_pair<2>(
        state->boxmuller_flag_double, state->boxmuller_extra_double, [=] { return curand_log_normal2_double(state, mean, deviation); });
  else
    return exp(mean + deviation * curand_normal_double(state));
}
inline float4 curand_uniform4(curandStatePhilox4_32_10* state) {
  const uint4 w = curand4(state);
  using touchstone::random::uniform;
  return float4{uniform(w.x), uniform(w.y), uniform(w.z), uniform(w.w)};
}
inline double2 curand_uniform2_double(curandStatePhilox4_32_10* state) {
  const uint4 w = curand4(state);
  return double2{touchstone::random::uniform53(w.x, w.y), touchstone::random::uniform53(w.z, w.w)};
}
inline double4 curand_uniform4_double(curandStatePhilox4_32_10* state) {
  const double2 a = curand_uniform2_double(state), b = curand_uniform2_double(state);
  return double4{a.x, a.y, b.x, b.y};
}
inline float4 curand_normal4(curandStatePhilox4_32_10* state) {
  const uint4 w = curand4(state);
  const float2 a = touchstone::random::box_muller(w.x, w.y), b = touchstone::random::box_muller(w.z, w.w);
  return float4{a.x, a.y, b.x, b.y};
}
inline float4 curand_log_normal4(curandStatePhilox4_32_10* state, float mean, float deviation) {
  const float4 n = curand_normal4(state);
  return float4{expf(mean + deviation * n.x), expf(mean + deviation * n.y), expf(mean + deviation * n.z),
                expf(mean + deviation * n.w)};
}
