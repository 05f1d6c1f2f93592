// CUB's collectives of a block and of a warp, by their documented interface; its algorithms differ on a GPU only in
// speed and in the order of additions. What threads exchange lies in TempStorage, so that a barrier which is missing
// before it is used again shows.
#pragma once
#include <algorithm>
#include <type_traits>
#include <utility>

namespace touchstone_cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
  BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockHistogramAlgorithm { BLOCK_HISTO_SORT, BLOCK_HISTO_ATOMIC };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};
enum CacheLoadModifier { LOAD_DEFAULT, LOAD_CA, LOAD_CG, LOAD_CS, LOAD_CV, LOAD_LDG, LOAD_VOLATILE };
enum CacheStoreModifier { STORE_DEFAULT, STORE_WB, STORE_CG, STORE_CS, STORE_WT, STORE_VOLATILE };
struct NullType {};

template <class K, class V>
struct KeyValuePair {
  using Key = K;
  using Value = V;
  K key;
  V value;
  KeyValuePair() = default;
  KeyValuePair(const K& k, const V& v) : key(k), value(v) {}
  bool operator!=(const KeyValuePair& other) const { return value != other.value || key != other.key; }
};
#define TS_FUNCTOR(Name, expression)               \
  struct Name {                                    \
    template <class T, class U>                    \
    auto operator()(const T& a, const U& b) const { \
      return expression;                           \
    }                                              \
  }
TS_FUNCTOR(Sum, a + b);
TS_FUNCTOR(Difference, a - b);
TS_FUNCTOR(Division, a / b);
TS_FUNCTOR(Equality, a == b);
TS_FUNCTOR(Inequality, a != b);
TS_FUNCTOR(Max, a < b ? b : a);
TS_FUNCTOR(Min, b < a ? b : a);
// Of pairs (index, value), and the lower index where the values are the same.
TS_FUNCTOR(ArgMax, (b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a));
TS_FUNCTOR(ArgMin, (b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a));
#undef TS_FUNCTOR

inline unsigned LaneId() { return ts_lane(); }
inline unsigned RowMajorTid(int x, int y, int z) {
  (void)z;
  return threadIdx.x + static_cast<unsigned>(x) * (threadIdx.y + static_cast<unsigned>(y) * threadIdx.z);
}
inline unsigned WarpId() { return RowMajorTid(blockDim.x, blockDim.y, blockDim.z) / 32; }
inline void CTA_SYNC() { __syncthreads(); }
inline void WARP_SYNC(unsigned mask) { __syncwarp(mask); }
template <CacheLoadModifier M, class It>
auto ThreadLoad(It from) {
  return *from;
}
template <CacheStoreModifier M, class It, class T>
void ThreadStore(It to, T value) {
  *to = value;
}
template <int N, class T, class Op>
T ThreadReduce(T (&items)[N], Op op) {
  T all = items[0];
  for (int i = 1; i < N; ++i) all = op(all, items[i]);
  return all;
}

namespace detail {
// Room for `T`, which may have constructors, in a TempStorage, whose are not called.
template <class T>
struct Slot {
  alignas(T) unsigned char bytes[sizeof(T)];
  const T& get() const { return *reinterpret_cast<const T*>(bytes); }
  void set(const T& value) { *reinterpret_cast<T*>(bytes) = value; }
};

// What every collective is made of: where its TempStorage lies, and the rank of the thread.
template <class Storage, int X, int Y, int Z>
struct Block {
  static constexpr int THREADS = X * Y * Z, WARPS = (THREADS + 31) / 32;
  using TempStorage = Storage;
  Storage& temp;
  const int tid;
  static Storage& own() {
    static ts_site site = touchstone::site<Storage>("TempStorage");
    return touchstone::shared<Storage>(site);
  }
  Block() : temp(own()), tid(static_cast<int>(RowMajorTid(X, Y, Z))) {}
  explicit Block(Storage& storage) : temp(storage), tid(static_cast<int>(RowMajorTid(X, Y, Z))) {}
};

template <class T, int N>
struct Reduced {
  Slot<T> item[N], warp[(N + 31) / 32];
};
template <class T, int N>
struct Exchanged {
  Slot<T> item[N];
};
template <class T>
unsigned long long order_of(T key) {  // a number whose order is that of the keys
  using U = std::conditional_t<sizeof(T) == 8, uint64_t,
      std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;
  U bits;
  __builtin_memcpy(&bits, &key, sizeof(T));
  const U top = static_cast<U>(U(1) << (sizeof(T) * 8 - 1));
  if (std::is_integral<T>::value)
    return static_cast<U>(std::is_signed<T>::value ? bits ^ top : bits);
  if (bits == top) bits = 0;  // -0 is sorted as 0
  return static_cast<U>(bits & top ? ~bits : bits ^ top);
}
}  // namespace detail

// --- of a warp ---

template <class T, int N = 32, int Legacy = 0>
class WarpReduce {
  static unsigned mask() { return N >= 32 ? 0xffffffffu : ((1u << N) - 1) << (ts_lane() / N * N); }
  template <class Op>
  static T tree(T value, Op op, int valid) {
    const int rank = static_cast<int>(ts_lane()) % N;
    for (int by = 1; by < N; by *= 2) {
      const bool there = rank + by < valid;
      const T other = touchstone::shuffle_words<touchstone::FROM>(
          mask(), value, static_cast<int>(ts_lane()) + (there ? by : 0), 32, "cub::WarpReduce", 0, "");
      if (there) value = op(value, other);
    }
    return value;
  }
  // Up to the next flag: `ends` has a bit for every lane that is the last of its segment.
  template <class Op>
  static T segments(T value, Op op, unsigned ends) {
    const unsigned later = ends & mask() & ~((1u << ts_lane()) - 1);
    const int last = later ? __builtin_ctz(later) : static_cast<int>(ts_lane()) / N * N + N - 1;
    return tree(value, op, last % N + 1);
  }

 public:
  struct TempStorage {
    char unused;
  };
  WarpReduce() = default;
  explicit WarpReduce(TempStorage&) {}
  template <class Op>
  T Reduce(T value, Op op) {
    return tree(value, op, N);
  }
  template <class Op>
  T Reduce(T value, Op op, int valid) {
    return tree(value, op, valid < N ? valid : N);
  }
  T Sum(T value) { return tree(value, touchstone_cub::Sum(), N); }
  T Sum(T value, int valid) { return Reduce(value, touchstone_cub::Sum(), valid); }
  T Max(T value) { return tree(value, touchstone_cub::Max(), N); }
  T Min(T value) { return tree(value, touchstone_cub::Min(), N); }
  template <class Flag, class Op>
  T HeadSegmentedReduce(T value, Flag head, Op op) {
    return segments(value, op, __ballot_sync(mask(), head != 0) >> 1);
  }
  template <class Flag, class Op>
  T TailSegmentedReduce(T value, Flag tail, Op op) {
    return segments(value, op, __ballot_sync(mask(), tail != 0));
  }
  template <class Flag>
  T HeadSegmentedSum(T value, Flag head) {
    return HeadSegmentedReduce(value, head, touchstone_cub::Sum());
  }
  template <class Flag>
  T TailSegmentedSum(T value, Flag tail) {
    return TailSegmentedReduce(value, tail, touchstone_cub::Sum());
  }
};

template <class T, int N = 32, int Legacy = 0>
class WarpScan {
  static unsigned mask() { return N >= 32 ? 0xffffffffu : ((1u << N) - 1) << (ts_lane() / N * N); }
  static int rank() { return static_cast<int>(ts_lane()) % N; }
  static T from(T value, int rank_) {
    return touchstone::shuffle_words<touchstone::FROM>(
        mask(), value, static_cast<int>(ts_lane()) / N * N + rank_, 32, "cub::WarpScan", 0, "");
  }

 public:
  struct TempStorage {
    char unused;
  };
  WarpScan() = default;
  explicit WarpScan(TempStorage&) {}
  template <class Op>
  void InclusiveScan(T in, T& out, Op op) {
    T all = in;
    for (int by = 1; by < N; by *= 2) {
      const T other = from(all, rank() >= by ? rank() - by : rank());
      if (rank() >= by) all = op(other, all);
    }
    out = all;
  }
  template <class Op>
  void InclusiveScan(T in, T& out, Op op, T& total) {
    InclusiveScan(in, out, op);
    total = from(out, N - 1);
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T first, Op op) {
    T all;
    InclusiveScan(in, all, op);
    const T before = from(all, rank() ? rank() - 1 : 0);
    out = rank() ? op(first, before) : first;
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T first, Op op, T& total) {
    T all;
    InclusiveScan(in, all, op, total);
    const T before = from(all, rank() ? rank() - 1 : 0);
    out = rank() ? op(first, before) : first;
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, Op op) {
    T all;
    InclusiveScan(in, all, op);
    out = from(all, rank() ? rank() - 1 : 0);
  }
  template <class Op>
  void Scan(T in, T& inclusive, T& exclusive, Op op) {
    InclusiveScan(in, inclusive, op);
    exclusive = from(inclusive, rank() ? rank() - 1 : 0);
  }
  void InclusiveSum(T in, T& out) { InclusiveScan(in, out, touchstone_cub::Sum()); }
  void InclusiveSum(T in, T& out, T& total) { InclusiveScan(in, out, touchstone_cub::Sum(), total); }
  void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T{}, touchstone_cub::Sum()); }
  void ExclusiveSum(T in, T& out, T& total) { ExclusiveScan(in, out, T{}, touchstone_cub::Sum(), total); }
  T Broadcast(T in, unsigned lane) { return from(in, static_cast<int>(lane)); }
};

// --- of a block ---

template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int Legacy = 0>
class BlockReduce : detail::Block<detail::Reduced<T, X * Y * Z>, X, Y, Z> {
  using Base = detail::Block<detail::Reduced<T, X * Y * Z>, X, Y, Z>;
  using Base::temp, Base::tid;

 public:
  using typename Base::TempStorage;
  using Base::Base;
  // The first thread of a warp adds up its lanes' in pairs, the first of the block the warps'.
  template <class Op>
  T Reduce(T value, Op op, int valid) {
    const int first = tid / 32 * 32, lanes = std::min(32, valid - first);
    temp.item[tid].set(value);
    __syncwarp();
    if (tid == first && lanes > 0) {
      for (int by = 1; by < lanes; by *= 2)
        for (int i = 0; i + by < lanes; i += 2 * by)
          temp.item[first + i].set(op(temp.item[first + i].get(), temp.item[first + i + by].get()));
      temp.warp[tid / 32].set(temp.item[first].get());
    }
    __syncthreads();
    if (tid == 0) {
      value = temp.warp[0].get();
      for (int w = 1; w * 32 < valid; ++w) value = op(value, temp.warp[w].get());
    }
    return value;
  }
  template <class Op>
  T Reduce(T value, Op op) {
    return Reduce(value, op, Base::THREADS);
  }
  template <int N, class Op>
  T Reduce(T (&items)[N], Op op) {
    return Reduce(ThreadReduce(items, op), op);
  }
  T Sum(T value) { return Reduce(value, touchstone_cub::Sum()); }
  T Sum(T value, int valid) { return Reduce(value, touchstone_cub::Sum(), valid); }
  template <int N>
  T Sum(T (&items)[N]) {
    return Reduce(items, touchstone_cub::Sum());
  }
};

template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int Legacy = 0>
class BlockScan : detail::Block<detail::Reduced<T, X * Y * Z>, X, Y, Z> {
  using Base = detail::Block<detail::Reduced<T, X * Y * Z>, X, Y, Z>;
  using Base::temp, Base::tid;

  // Of all threads before this one: true and their `before`, or false. `total` is of all.
  template <class Op>
  bool scan(T value, Op op, T& before, T& total) {
    const int first = tid / 32 * 32, last = std::min(first + 32, Base::THREADS);
    temp.item[tid].set(value);
    __syncwarp();
    if (tid == first) {
      for (int i = first + 1; i < last; ++i) temp.item[i].set(op(temp.item[i - 1].get(), temp.item[i].get()));
      temp.warp[tid / 32].set(temp.item[last - 1].get());
    }
    __syncthreads();
    total = temp.warp[0].get();
    T ahead = total;
    for (int w = 1; w < Base::WARPS; ++w) {
      if (w == tid / 32) ahead = total;
      total = op(total, temp.warp[w].get());
    }
    if (tid == 0) return false;
    if (tid == first) before = ahead;
    else before = tid < 32 ? temp.item[tid - 1].get() : op(ahead, temp.item[tid - 1].get());
    return true;
  }
  template <int N, class Op>
  void scan_items(T (&in)[N], T (&out)[N], Op op, const T* start, bool inclusive, T& total) {
    T before{};
    bool any = scan(ThreadReduce(in, op), op, before, total);
    if (start) {
      before = any ? op(*start, before) : *start;
      any = true;
    }
    for (int i = 0; i < N; ++i) {
      const T item = in[i], all = any ? op(before, item) : item;
      if (inclusive) out[i] = all;
      else if (any) out[i] = before;
      before = all;
      any = true;
    }
  }
  // The first warp calls it with the block's total; what the first lane gets is before all that the block has.
  template <class Callback>
  T prefix(Callback& callback, const T& total) {
    if (tid < 32) {
      const T before = callback(total);
      if (tid == 0) temp.warp[0].set(before);
    }
    __syncthreads();
    return temp.warp[0].get();
  }

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <int N, class Op>
  void InclusiveScan(T (&in)[N], T (&out)[N], Op op, T& total) {
    scan_items(in, out, op, nullptr, true, total);
  }
  template <int N, class Op>
  void InclusiveScan(T (&in)[N], T (&out)[N], Op op) {
    T total;
    InclusiveScan(in, out, op, total);
  }
  template <int N, class Op>
  void ExclusiveScan(T (&in)[N], T (&out)[N], T first, Op op, T& total) {
    scan_items(in, out, op, &first, false, total);
  }
  template <int N, class Op>
  void ExclusiveScan(T (&in)[N], T (&out)[N], T first, Op op) {
    T total;
    ExclusiveScan(in, out, first, op, total);
  }
  template <int N, class Op>
  void ExclusiveScan(T (&in)[N], T (&out)[N], Op op) {
    T total;
    scan_items(in, out, op, nullptr, false, total);
  }
  template <int N, class Op, class Callback>
  void with_prefix_(T (&in)[N], T (&out)[N], Op op, Callback& callback, bool inclusive) {
    T before{}, total;
    bool any = scan(ThreadReduce(in, op), op, before, total);
    __syncthreads();
    const T start = prefix(callback, total);
    before = any ? op(start, before) : start;
    for (int i = 0; i < N; ++i) {
      const T all = op(before, in[i]);
      out[i] = inclusive ? all : before;
      before = all;
    }
  }
  template <class Op, class... More>
  void InclusiveScan(T in, T& out, Op op, More&&... more) {
    T ins[1] = {in}, outs[1];
    inclusive_(ins, outs, op, more...);
    out = outs[0];
  }
  template <class Op>
  void inclusive_(T (&in)[1], T (&out)[1], Op op) {
    InclusiveScan(in, out, op);
  }
  template <class Op, class Last>
  void inclusive_(T (&in)[1], T (&out)[1], Op op, Last& last) {
    if constexpr (std::is_same<Last, T>::value) InclusiveScan(in, out, op, last);
    else with_prefix_(in, out, op, last, true);
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T first, Op op) {
    T ins[1] = {in}, outs[1];
    ExclusiveScan(ins, outs, first, op);
    out = outs[0];
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T first, Op op, T& total) {
    T ins[1] = {in}, outs[1];
    ExclusiveScan(ins, outs, first, op, total);
    out = outs[0];
  }
  template <class Op, class = std::enable_if_t<!std::is_convertible<Op, T>::value>>
  void ExclusiveScan(T in, T& out, Op op) {
    T ins[1] = {in}, outs[1];
    ExclusiveScan(ins, outs, op);
    if (tid) out = outs[0];
  }
  template <class... More>
  void InclusiveSum(T in, T& out, More&&... more) {
    InclusiveScan(in, out, touchstone_cub::Sum(), more...);
  }
  template <int N>
  void InclusiveSum(T (&in)[N], T (&out)[N]) {
    InclusiveScan(in, out, touchstone_cub::Sum());
  }
  template <int N, class Last>
  void InclusiveSum(T (&in)[N], T (&out)[N], Last& last) {
    if constexpr (std::is_same<Last, T>::value) InclusiveScan(in, out, touchstone_cub::Sum(), last);
    else with_prefix_(in, out, touchstone_cub::Sum(), last, true);
  }
  void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T{}, touchstone_cub::Sum()); }
  template <class Last>
  void ExclusiveSum(T in, T& out, Last& last) {
    T ins[1] = {in}, outs[1];
    ExclusiveSum(ins, outs, last);
    out = outs[0];
  }
  template <int N>
  void ExclusiveSum(T (&in)[N], T (&out)[N]) {
    ExclusiveScan(in, out, T{}, touchstone_cub::Sum());
  }
  template <int N, class Last>
  void ExclusiveSum(T (&in)[N], T (&out)[N], Last& last) {
    if constexpr (std::is_same<Last, T>::value) ExclusiveScan(in, out, T{}, touchstone_cub::Sum(), last);
    else with_prefix_(in, out, touchstone_cub::Sum(), last, false);
  }
};

// Blocked: a thread has neighbours; striped: threads of the same rank do, as far apart as there are threads.
template <class It, class T, int N>
void LoadDirectBlocked(int tid, It from, T (&items)[N]) {
  for (int i = 0; i < N; ++i) items[i] = from[tid * N + i];
}
template <class It, class T, int N>
void LoadDirectBlocked(int tid, It from, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (tid * N + i < valid) items[i] = from[tid * N + i];
}
template <class It, class T, int N, class D>
void LoadDirectBlocked(int tid, It from, T (&items)[N], int valid, D other) {
  for (int i = 0; i < N; ++i)
    items[i] = tid * N + i < valid ? static_cast<T>(from[tid * N + i]) : static_cast<T>(other);
}
template <int B, class It, class T, int N>
void LoadDirectStriped(int tid, It from, T (&items)[N]) {
  for (int i = 0; i < N; ++i) items[i] = from[tid + i * B];
}
template <int B, class It, class T, int N>
void LoadDirectStriped(int tid, It from, T (&items)[N], int valid) {
  for (int i = 0; i < N; ++i)
    if (tid + i * B < valid) items[i] = from[tid + i * B];
}
template <int B, class It, class T, int N, class D>
void LoadDirectStriped(int tid, It from, T (&items)[N], int valid, D other) {
  for (int i = 0; i < N; ++i)
    items[i] = tid + i * B < valid ? static_cast<T>(from[tid + i * B]) : static_cast<T>(other);
}
template <class T, int N>
void LoadDirectBlockedVectorized(int tid, T* from, T (&items)[N]) {
  LoadDirectBlocked(tid, from, items);
}
template <class It, class T, int N>
void StoreDirectBlocked(int tid, It to, T (&items)[N], int valid = 0x7fffffff) {
  for (int i = 0; i < N; ++i)
    if (tid * N + i < valid) to[tid * N + i] = items[i];
}
template <int B, class It, class T, int N>
void StoreDirectStriped(int tid, It to, T (&items)[N], int valid = 0x7fffffff) {
  for (int i = 0; i < N; ++i)
    if (tid + i * B < valid) to[tid + i * B] = items[i];
}

struct touchstone_nothing_ {
  char unused;
};
template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int Legacy = 0>
class BlockLoad : detail::Block<touchstone_nothing_, X, Y, Z> {
  using Base = detail::Block<touchstone_nothing_, X, Y, Z>;

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <class It, class... More>
  void Load(It from, T (&items)[N], More... more) {
    if constexpr (A == BLOCK_LOAD_STRIPED) LoadDirectStriped<X * Y * Z>(Base::tid, from, items, more...);
    else LoadDirectBlocked(Base::tid, from, items, more...);
  }
};
template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int Legacy = 0>
class BlockStore : detail::Block<touchstone_nothing_, X, Y, Z> {
  using Base = detail::Block<touchstone_nothing_, X, Y, Z>;

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <class It, class... More>
  void Store(It to, T (&items)[N], More... more) {
    if constexpr (A == BLOCK_STORE_STRIPED) StoreDirectStriped<X * Y * Z>(Base::tid, to, items, more...);
    else StoreDirectBlocked(Base::tid, to, items, more...);
  }
};

template <class T, int X, int N, bool Sliced = false, int Y = 1, int Z = 1, int Legacy = 0>
class BlockExchange : detail::Block<detail::Exchanged<T, X * Y * Z * N>, X, Y, Z> {
  using Base = detail::Block<detail::Exchanged<T, X * Y * Z * N>, X, Y, Z>;
  using Base::temp, Base::tid;
  template <class U, class To, class From>
  void move(T (&in)[N], U (&out)[N], To to, From from) {
    for (int i = 0; i < N; ++i) temp.item[to(i)].set(in[i]);
    __syncthreads();
    for (int i = 0; i < N; ++i) out[i] = temp.item[from(i)].get();
  }
  int blocked(int i) const { return tid * N + i; }
  int striped(int i) const { return i * Base::THREADS + tid; }
  int in_warp(int i) const { return (tid / 32) * 32 * N + i * 32 + tid % 32; }

 public:
  using typename Base::TempStorage;
  using Base::Base;
#define TS_EXCHANGE(Name, to, from)                                         \
  template <class U>                                                        \
  void Name(T (&in)[N], U (&out)[N]) {                                      \
    move(in, out, [&](int i) { return to; }, [&](int i) { return from; });  \
  }                                                                         \
  void Name(T (&items)[N]) { Name(items, items); }
  TS_EXCHANGE(BlockedToStriped, blocked(i), striped(i))
  TS_EXCHANGE(StripedToBlocked, striped(i), blocked(i))
  TS_EXCHANGE(BlockedToWarpStriped, blocked(i), in_warp(i))
  TS_EXCHANGE(WarpStripedToBlocked, in_warp(i), blocked(i))
#undef TS_EXCHANGE
  template <class U, class R>
  void ScatterToBlocked(T (&in)[N], U (&out)[N], R (&ranks)[N]) {
    move(in, out, [&](int i) { return static_cast<int>(ranks[i]); }, [&](int i) { return blocked(i); });
  }
  template <class U, class R>
  void ScatterToStriped(T (&in)[N], U (&out)[N], R (&ranks)[N]) {
    move(in, out, [&](int i) { return static_cast<int>(ranks[i]); }, [&](int i) { return striped(i); });
  }
  template <class R>
  void ScatterToBlocked(T (&items)[N], R (&ranks)[N]) {
    ScatterToBlocked(items, items, ranks);
  }
  template <class R>
  void ScatterToStriped(T (&items)[N], R (&ranks)[N]) {
    ScatterToStriped(items, items, ranks);
  }
};

namespace detail {
template <class K, class V, int N>
struct Sorted {
  K key[N];
  Slot<V> value[N];
  unsigned long long by[N];
  int order[N];
};
}  // namespace detail
template <class K, int X, int N, class V = NullType, int Bits = 4, bool Memoize = true,
          BlockScanAlgorithm A = BLOCK_SCAN_WARP_SCANS, int Config = 0, int Y = 1, int Z = 1, int Legacy = 0>
class BlockRadixSort : detail::Block<detail::Sorted<K, V, X * Y * Z * N>, X, Y, Z> {
  using Base = detail::Block<detail::Sorted<K, V, X * Y * Z * N>, X, Y, Z>;
  using Base::temp, Base::tid;
  // The first thread sorts; who has equal keys stays in order.
  void sort(K (&keys)[N], V* values, bool striped, bool descending, int begin, int end) {
    for (int i = 0; i < N; ++i) {
      temp.key[tid * N + i] = keys[i];
      if (values) temp.value[tid * N + i].set(values[i]);
      const unsigned long long order = detail::order_of(keys[i]) >> begin;
      temp.by[tid * N + i] = end - begin < 64 ? order & ((1ull << (end - begin)) - 1) : order;
      temp.order[tid * N + i] = tid * N + i;
    }
    __syncthreads();
    if (tid == 0)
      std::sort(temp.order, temp.order + Base::THREADS * N, [&](int a, int b) {
        if (temp.by[a] != temp.by[b]) return (temp.by[a] < temp.by[b]) != descending;
        return a < b;
      });
    __syncthreads();
    for (int i = 0; i < N; ++i) {
      const int from = temp.order[striped ? i * Base::THREADS + tid : tid * N + i];
      keys[i] = temp.key[from];
      if (values) values[i] = temp.value[from].get();
    }
  }

 public:
  using typename Base::TempStorage;
  using Base::Base;
#define TS_SORT(Name, striped, descending)                                              \
  void Name(K (&keys)[N], int begin = 0, int end = sizeof(K) * 8) {                     \
    sort(keys, nullptr, striped, descending, begin, end);                               \
  }                                                                                     \
  void Name(K (&keys)[N], V (&values)[N], int begin = 0, int end = sizeof(K) * 8) {     \
    sort(keys, values, striped, descending, begin, end);                                \
  }
  TS_SORT(Sort, false, false)
  TS_SORT(SortDescending, false, true)
  TS_SORT(SortBlockedToStriped, true, false)
  TS_SORT(SortDescendingBlockedToStriped, true, true)
#undef TS_SORT
};

template <class T, int X, int Y = 1, int Z = 1, int Legacy = 0>
class BlockDiscontinuity : detail::Block<detail::Exchanged<T, X * Y * Z>, X, Y, Z> {
  using Base = detail::Block<detail::Exchanged<T, X * Y * Z>, X, Y, Z>;
  using Base::temp, Base::tid;
  template <class Op, class... I>
  static bool differ(Op op, const T& a, const T& b, int place) {
    if constexpr (std::is_invocable<Op, T, T, int>::value) return op(a, b, place);
    else return op(a, b);
  }
  template <int N, class F, class Op>
  void heads(F (&flags)[N], T (&in)[N], Op op, const T* before) {
    temp.item[tid].set(in[N - 1]);
    __syncthreads();
    for (int i = 0; i < N; ++i) {
      if (i) flags[i] = differ(op, in[i - 1], in[i], tid * N + i);
      else if (tid) flags[0] = differ(op, temp.item[tid - 1].get(), in[0], tid * N);
      else flags[0] = before ? differ(op, *before, in[0], 0) : 1;
    }
  }
  template <int N, class F, class Op>
  void tails(F (&flags)[N], T (&in)[N], Op op, const T* after) {
    temp.item[tid].set(in[0]);
    __syncthreads();
    for (int i = 0; i < N; ++i) {
      if (i < N - 1) flags[i] = differ(op, in[i], in[i + 1], tid * N + i + 1);
      else if (tid < Base::THREADS - 1) flags[i] = differ(op, in[i], temp.item[tid + 1].get(), tid * N + i + 1);
      else flags[i] = after ? differ(op, in[i], *after, tid * N + i + 1) : 1;
    }
  }

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <int N, class F, class Op>
  void FlagHeads(F (&flags)[N], T (&in)[N], Op op) {
    heads(flags, in, op, nullptr);
  }
  template <int N, class F, class Op>
  void FlagHeads(F (&flags)[N], T (&in)[N], Op op, T before) {
    heads(flags, in, op, &before);
  }
  template <int N, class F, class Op>
  void FlagTails(F (&flags)[N], T (&in)[N], Op op) {
    tails(flags, in, op, nullptr);
  }
  template <int N, class F, class Op>
  void FlagTails(F (&flags)[N], T (&in)[N], Op op, T after) {
    tails(flags, in, op, &after);
  }
};

template <class T, int X, int Y = 1, int Z = 1, int Legacy = 0>
class BlockAdjacentDifference : detail::Block<detail::Exchanged<T, X * Y * Z>, X, Y, Z> {
  using Base = detail::Block<detail::Exchanged<T, X * Y * Z>, X, Y, Z>;
  using Base::temp, Base::tid;

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <int N, class U, class Op>
  void SubtractLeft(T (&in)[N], U (&out)[N], Op op) {
    temp.item[tid].set(in[N - 1]);
    __syncthreads();
    for (int i = N - 1; i > 0; --i) out[i] = op(in[i], in[i - 1]);
    out[0] = tid ? op(in[0], temp.item[tid - 1].get()) : static_cast<U>(in[0]);
  }
  template <int N, class U, class Op>
  void SubtractRight(T (&in)[N], U (&out)[N], Op op) {
    temp.item[tid].set(in[0]);
    __syncthreads();
    const T last = in[N - 1];
    for (int i = 0; i < N - 1; ++i) out[i] = op(in[i], in[i + 1]);
    out[N - 1] = tid < Base::THREADS - 1 ? op(last, temp.item[tid + 1].get()) : static_cast<U>(last);
  }
};

template <class T, int X, int N, int Bins, BlockHistogramAlgorithm A = BLOCK_HISTO_SORT, int Y = 1, int Z = 1,
          int Legacy = 0>
class BlockHistogram : detail::Block<touchstone_nothing_, X, Y, Z> {
  using Base = detail::Block<touchstone_nothing_, X, Y, Z>;

 public:
  using typename Base::TempStorage;
  using Base::Base;
  template <class Counter>
  void InitHistogram(Counter histogram[Bins]) {
    for (int bin = Base::tid; bin < Bins; bin += Base::THREADS) histogram[bin] = 0;
  }
  template <class Counter>
  void Composite(T (&items)[N], Counter histogram[Bins]) {
    for (int i = 0; i < N; ++i) atomicAdd(histogram + items[i], Counter(1));
  }
  template <class Counter>
  void Histogram(T (&items)[N], Counter histogram[Bins]) {
    InitHistogram(histogram);
    __syncthreads();
    Composite(items, histogram);
  }
};

}  // namespace touchstone_cub

#define cub touchstone_cub  // CUB's own headers, which Thrust includes, have their namespace to themselves
