// Barriers, and what the lanes of a warp do together.
#pragma once

inline void __syncthreads(TS_LINE) { ts_syncthreads(TS_SYNC, 0, line, file); }
inline int __syncthreads_count(int predicate, TS_LINE) { return ts_syncthreads(TS_SYNC_COUNT, predicate, line, file); }
inline int __syncthreads_and(int predicate, TS_LINE) { return ts_syncthreads(TS_SYNC_AND, predicate, line, file); }
inline int __syncthreads_or(int predicate, TS_LINE) { return ts_syncthreads(TS_SYNC_OR, predicate, line, file); }
inline void __syncwarp(unsigned mask = 0xffffffffu, TS_LINE) {
  ts_warp(mask, nullptr, nullptr, "__syncwarp", line, file);
}
inline unsigned __activemask(TS_LINE) { return ts_active_mask(line, file); }
inline void __threadfence() { ts_fence(); }
inline void __threadfence_block() { ts_fence(); }
inline void __threadfence_system() { ts_fence(); }
inline void __nanosleep(unsigned) { ts_pause(); }
// One launch ends before the next begins.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline long clock_ticks_() { return static_cast<long>(ts_clock()); }
inline long long clock64() { return static_cast<long long>(ts_clock()); }

namespace touchstone {

struct Offer {
  uint64_t value;   // what the lane brings
  uint64_t result;  // what it takes home
  int lane;         // the lane it reads from
  int flag;
  int line;
  const char* file;
  const char* what;
};

TS_PLAIN inline void shuffle_combine(void** lanes, uint32_t mask) {
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    Offer& mine = *static_cast<Offer*>(lanes[i]);
    if (!lanes[mine.lane]) ts_fail_lane(mask, i, mine.lane, mine.what, mine.line, mine.file);
    mine.result = static_cast<Offer*>(lanes[mine.lane])->value;
  }
}

enum ShuffleKind { FROM, UP, DOWN, XOR };

template <ShuffleKind K>
TS_PLAIN uint64_t shuffle(
    uint32_t mask, uint64_t value, int by, int width, const char* what, int line, const char* file) {
  if (width <= 0 || width > 32 || (width & (width - 1)))
    ts_fault("the width of a shuffle is not a power of two up to 32", TS_PC);
  const int lane = static_cast<int>(ts_lane()), first = lane & ~(width - 1);
  int from = lane;
  if (K == FROM) from = first + (by & (width - 1));
  if (K == UP) from = lane - by >= first ? lane - by : lane;
  if (K == DOWN) from = lane + by < first + width ? lane + by : lane;
  if (K == XOR) from = (lane ^ by) < first + width ? lane ^ by : lane;  // a lower group may be read, a higher not
  Offer offer = {value, 0, from & 31, 0, line, file, what};
  ts_warp(mask, shuffle_combine, &offer, what, line, file);
  return offer.result;
}

template <ShuffleKind K, class T>
__forceinline__ T shuffle_any(
    uint32_t mask, T value, int by, int width, const char* what, int line, const char* file) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = shuffle<K>(mask, bits, by, width, what, line, file);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

// Of any size, in words of 8 bytes.
template <ShuffleKind K, class T>
__forceinline__ T shuffle_words(
    uint32_t mask, T value, int by, int width, const char* what, int line, const char* file) {
  if constexpr (sizeof(T) <= 8) {
    return shuffle_any<K>(mask, value, by, width, what, line, file);
  } else {
    uint64_t words[(sizeof(T) + 7) / 8] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (uint64_t& word : words) word = shuffle<K>(mask, word, by, width, what, line, file);
    __builtin_memcpy(&value, words, sizeof(T));
    return value;
  }
}

enum VoteKind { ALL, ANY, UNI, BALLOT, MATCH_ANY, MATCH_ALL, SUM, MIN_S, MAX_S, MIN_U, MAX_U, AND, OR, XOR_BITS };

template <VoteKind K>
TS_PLAIN void vote_combine(void** lanes, uint32_t mask) {
  (void)mask;
  uint64_t all = 1, any = 0, ballot = 0, first = 0, result = 0;
  bool begun = false, same = true;
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    const uint64_t value = static_cast<Offer*>(lanes[i])->value;
    all &= value != 0;
    any |= value != 0;
    ballot |= uint64_t(value != 0) << i;
    if (!begun) {
      first = value;
      result = value;
    } else {
      const uint32_t a = static_cast<uint32_t>(result), b = static_cast<uint32_t>(value);
      const int32_t sa = static_cast<int32_t>(a), sb = static_cast<int32_t>(b);
      if (K == SUM) result = static_cast<uint32_t>(a + b);
      if (K == MIN_S) result = sa < sb ? a : b;
      if (K == MAX_S) result = sa > sb ? a : b;
      if (K == MIN_U) result = a < b ? a : b;
      if (K == MAX_U) result = a > b ? a : b;
      if (K == AND) result = a & b;
      if (K == OR) result = a | b;
      if (K == XOR_BITS) result = a ^ b;
    }
    same &= value == first;
    begun = true;
  }
  uint32_t present = 0;
  for (int i = 0; i < 32; ++i) present |= uint32_t(lanes[i] != nullptr) << i;
  for (int i = 0; i < 32; ++i) {
    if (!lanes[i]) continue;
    Offer& mine = *static_cast<Offer*>(lanes[i]);
    if (K == ALL) mine.result = all;
    else if (K == ANY) mine.result = any;
    else if (K == UNI) mine.result = all == any;
    else if (K == BALLOT) mine.result = ballot;
    else if (K == MATCH_ALL) {
      mine.result = same ? present : 0;
      mine.flag = same;
    } else if (K == MATCH_ANY) {
      mine.result = 0;
      for (int j = 0; j < 32; ++j)
        if (lanes[j] && static_cast<Offer*>(lanes[j])->value == mine.value) mine.result |= uint64_t(1) << j;
    } else {
      mine.result = result;
    }
  }
}

template <VoteKind K>
TS_PLAIN uint64_t vote(uint32_t mask, uint64_t value, int* flag, const char* what, int line, const char* file) {
  Offer offer = {value, 0, 0, 0, line, file, what};
  ts_warp(mask, vote_combine<K>, &offer, what, line, file);
  if (flag) *flag = offer.flag;
  return offer.result;
}

template <class T>
__forceinline__ uint64_t bits_of(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "match compares 4 or 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  return bits;
}

}  // namespace touchstone

#define TS_SHUFFLE(name, Kind, By)                                                              \
  template <class T>                                                                            \
  __forceinline__ T name(unsigned mask, T value, By by, int width = 32, TS_LINE) {              \
    return touchstone::shuffle_any<touchstone::Kind>(                                           \
        mask, value, static_cast<int>(by), width, #name, line, file);                           \
  }
TS_SHUFFLE(__shfl_sync, FROM, int)
TS_SHUFFLE(__shfl_up_sync, UP, unsigned)
TS_SHUFFLE(__shfl_down_sync, DOWN, unsigned)
TS_SHUFFLE(__shfl_xor_sync, XOR, int)
#undef TS_SHUFFLE

inline int __all_sync(unsigned mask, int p, TS_LINE) {
  return static_cast<int>(touchstone::vote<touchstone::ALL>(mask, p != 0, nullptr, "__all_sync", line, file));
}
inline int __any_sync(unsigned mask, int p, TS_LINE) {
  return static_cast<int>(touchstone::vote<touchstone::ANY>(mask, p != 0, nullptr, "__any_sync", line, file));
}
inline int __uni_sync(unsigned mask, int p, TS_LINE) {
  return static_cast<int>(touchstone::vote<touchstone::UNI>(mask, p != 0, nullptr, "__uni_sync", line, file));
}
inline unsigned __ballot_sync(unsigned mask, int p, TS_LINE) {
  return static_cast<unsigned>(
      touchstone::vote<touchstone::BALLOT>(mask, p != 0, nullptr, "__ballot_sync", line, file));
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, TS_LINE) {
  return static_cast<unsigned>(touchstone::vote<touchstone::MATCH_ANY>(
      mask, touchstone::bits_of(value), nullptr, "__match_any_sync", line, file));
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* same, TS_LINE) {
  return static_cast<unsigned>(touchstone::vote<touchstone::MATCH_ALL>(
      mask, touchstone::bits_of(value), same, "__match_all_sync", line, file));
}

#define TS_REDUCE(name, Type, Kind)                                                                                   \
  inline Type name(unsigned mask, Type value, TS_LINE) {                                                              \
    return static_cast<Type>(                                                                                         \
        touchstone::vote<touchstone::Kind>(mask, static_cast<uint32_t>(value), nullptr, #name, line, file));          \
  }
TS_REDUCE(__reduce_add_sync, unsigned, SUM)
TS_REDUCE(__reduce_add_sync, int, SUM)
TS_REDUCE(__reduce_min_sync, unsigned, MIN_U)
TS_REDUCE(__reduce_min_sync, int, MIN_S)
TS_REDUCE(__reduce_max_sync, unsigned, MAX_U)
TS_REDUCE(__reduce_max_sync, int, MAX_S)
TS_REDUCE(__reduce_and_sync, unsigned, AND)
TS_REDUCE(__reduce_or_sync, unsigned, OR)
TS_REDUCE(__reduce_xor_sync, unsigned, XOR_BITS)
#undef TS_REDUCE
