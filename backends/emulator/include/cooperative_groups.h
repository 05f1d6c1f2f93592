// Cooperative groups: grid, block, clusters of one block, tiles, partitions, coalesced threads, and what they compute.
#pragma once
#include <type_traits>

namespace cooperative_groups {

namespace details {
struct Barrier {  // where arrive() is followed by wait()
  int line;
  const char* file;
};
inline bool bar_has_flipped(unsigned before, unsigned now) { return ((before ^ now) & 0x80000000u) != 0; }
}  // namespace details

class grid_group {
 public:
  using arrival_token = unsigned int;
  void sync(TS_LINE) const { ts_syncgrid(line, file); }
  arrival_token barrier_arrive() const { return 0; }
  void barrier_wait(arrival_token&&, TS_LINE) const { ts_syncgrid(line, file); }
  bool is_valid() const { return true; }
  unsigned long long num_blocks() const { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
  dim3 group_dim() const { return gridDim; }
  dim3 dim_blocks() const { return gridDim; }
  dim3 block_index() const { return blockIdx; }
  unsigned long long block_rank() const {
    return blockIdx.x + static_cast<unsigned long long>(gridDim.x) *
                            (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
  }
  unsigned long long num_threads() const { return num_blocks() * blockDim.x * blockDim.y * blockDim.z; }
  unsigned long long size() const { return num_threads(); }
  unsigned long long thread_rank() const {
    return block_rank() * (blockDim.x * blockDim.y * blockDim.z) + threadIdx.x +
           blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
};
inline grid_group this_grid() { return grid_group(); }

template <unsigned MaxBlockSize = 1024>
struct block_tile_memory {
  char unused;
};

class thread_block {
 public:
  using arrival_token = details::Barrier;
  static void sync(TS_LINE) { ts_syncthreads(TS_SYNC, 0, line, file); }
  arrival_token barrier_arrive(TS_LINE) const { return {line, file}; }
  void barrier_wait(arrival_token&& token) const { ts_syncthreads(TS_SYNC, 0, token.line, token.file); }
  static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }
template <unsigned N>
inline thread_block this_thread_block(block_tile_memory<N>&) {
  return thread_block();
}

class cluster_group {
 public:
  using arrival_token = details::Barrier;
  static void sync(TS_LINE) {
    touchstone::ptx::cluster_arrive();
    ts_cluster_wait(line, file);
  }
  static arrival_token barrier_arrive(TS_LINE) {
    touchstone::ptx::cluster_arrive();
    return {line, file};
  }
  static void barrier_wait(TS_LINE) { ts_cluster_wait(line, file); }
  static void barrier_wait(arrival_token&&, TS_LINE) { ts_cluster_wait(line, file); }
  static unsigned block_rank() { return ts_cluster_rank(); }
  static unsigned num_blocks() { return touchstone::ptx::cluster_blocks(); }
  static unsigned thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
  static unsigned num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned size() { return num_threads(); }
  static dim3 block_index() { return touchstone::ptx::block_in_cluster(); }
  static dim3 dim_blocks() { return touchstone::ptx::cluster_dim(); }
  template <class T>
  static T* map_shared_rank(T* p, int rank) {
    return reinterpret_cast<T*>(
        touchstone::ptx::mapa_generic(reinterpret_cast<uint64_t>(p), static_cast<uint32_t>(rank)));
  }
  static unsigned query_shared_rank(const void* p) {
    return static_cast<unsigned>(ts_shared_address(p) >> 24);
  }
};
inline cluster_group this_cluster() { return cluster_group(); }

// Some lanes of the warp, in order of their rank; what tiles and coalesced threads have in common.
class warp_group_ {
 protected:
  unsigned mask_;
  explicit warp_group_(unsigned mask) : mask_(mask) {}
  int lane_(unsigned rank) const {
    unsigned rest = mask_;
    for (unsigned i = 0; i < rank; ++i) rest &= rest - 1;
    return __builtin_ffs(static_cast<int>(rest)) - 1;
  }
  unsigned packed_(unsigned lanes) const {  // of a mask of lanes the mask of ranks
    unsigned out = 0, rank = 0;
    for (unsigned rest = mask_; rest; rest &= rest - 1, ++rank)
      if (lanes & rest & -rest) out |= 1u << rank;
    return out;
  }

 public:
  unsigned mask() const { return mask_; }
  unsigned size() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return static_cast<unsigned>(__builtin_popcount(mask_ & ((1u << ts_lane()) - 1))); }
  void sync(TS_LINE) const { ts_warp(mask_, nullptr, nullptr, "group.sync", line, file); }
  template <class T>
  T shfl(T value, int rank, TS_LINE) const {
    return touchstone::shuffle_words<touchstone::FROM>(mask_, value, lane_(static_cast<unsigned>(rank) % size()), 32,
        "group.shfl", line, file);
  }
  template <class T>
  T shfl_down(T value, unsigned by, TS_LINE) const {
    const unsigned rank = thread_rank() + by;
    return touchstone::shuffle_words<touchstone::FROM>(mask_, value, lane_(rank < size() ? rank : thread_rank()), 32,
        "group.shfl_down", line, file);
  }
  template <class T>
  T shfl_up(T value, unsigned by, TS_LINE) const {
    const unsigned rank = thread_rank();
    return touchstone::shuffle_words<touchstone::FROM>(mask_, value, lane_(rank < by ? rank : rank - by), 32,
        "group.shfl_up", line, file);
  }
  int any(int p, TS_LINE) const { return __any_sync(mask_, p, line, file); }
  int all(int p, TS_LINE) const { return __all_sync(mask_, p, line, file); }
  unsigned ballot(int p, TS_LINE) const { return packed_(__ballot_sync(mask_, p, line, file)); }
  template <class T>
  unsigned match_any(T value, TS_LINE) const {
    return packed_(__match_any_sync(mask_, value, line, file));
  }
  template <class T>
  unsigned match_all(T value, int& same, TS_LINE) const {
    return packed_(__match_all_sync(mask_, value, &same, line, file));
  }
};

// The lanes that came here together, or a part of them.
class coalesced_group : public warp_group_ {
  unsigned meta_rank_ = 0, meta_size_ = 1;

 public:
  explicit coalesced_group(unsigned mask, unsigned meta_rank = 0, unsigned meta_size = 1)
      : warp_group_(mask), meta_rank_(meta_rank), meta_size_(meta_size) {}
  unsigned meta_group_rank() const { return meta_rank_; }
  unsigned meta_group_size() const { return meta_size_; }
};
inline coalesced_group coalesced_threads(TS_LINE) { return coalesced_group(__activemask(line, file)); }

template <unsigned Size, class Parent = void>
class thread_block_tile : public warp_group_ {
  static_assert(Size > 0 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");
  static unsigned lanes_() { return (Size == 32 ? 0xffffffffu : (1u << Size % 32) - 1) << (ts_lane() & ~(Size - 1)); }

 public:
  thread_block_tile() : warp_group_(lanes_()) {}
  template <class Other>
  thread_block_tile(const thread_block_tile<Size, Other>&) : warp_group_(lanes_()) {}
  static unsigned thread_rank() { return ts_lane() & (Size - 1); }
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }
  template <class T>
  T shfl(T value, int from, TS_LINE) const {
    return touchstone::shuffle_words<touchstone::FROM>(mask_, value, from, Size, "tile.shfl", line, file);
  }
  template <class T>
  T shfl_down(T value, unsigned by, TS_LINE) const {
    return touchstone::shuffle_words<touchstone::DOWN>(mask_, value, static_cast<int>(by), Size, "tile.shfl_down",
        line, file);
  }
  template <class T>
  T shfl_up(T value, unsigned by, TS_LINE) const {
    return touchstone::shuffle_words<touchstone::UP>(mask_, value, static_cast<int>(by), Size, "tile.shfl_up",
        line, file);
  }
  template <class T>
  T shfl_xor(T value, unsigned by, TS_LINE) const {
    return touchstone::shuffle_words<touchstone::XOR>(mask_, value, static_cast<int>(by), Size, "tile.shfl_xor",
        line, file);
  }
};

// A tile of several warps: its threads meet at a barrier of their own.
template <unsigned Size>
class wide_tile_ {
  static_assert(Size == 64 || Size == 128 || Size == 256 || Size == 512 || Size == 1024,
      "a tile's size is a power of two");

 public:
  static unsigned thread_rank() { return thread_block::thread_rank() % Size; }
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }
  void sync(TS_LINE) const { ts_named_barrier(1 + meta_group_rank(), Size, 1, line, file); }
};

template <unsigned Size, class Group, std::enable_if_t<(Size <= 32), int> = 0>
inline thread_block_tile<Size, Group> tiled_partition(const Group&) {
  return thread_block_tile<Size, Group>();
}
template <unsigned Size, class Group, std::enable_if_t<(Size > 32), int> = 0>
inline wide_tile_<Size> tiled_partition(const Group&) {
  return wide_tile_<Size>();
}

// Any of the groups, by value.
class thread_group : public warp_group_ {
  bool whole_;

 public:
  thread_group(const thread_block&) : warp_group_(0), whole_(true) {}
  thread_group(const warp_group_& group) : warp_group_(group), whole_(false) {}
  unsigned size() const { return whole_ ? thread_block::size() : warp_group_::size(); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return whole_ ? thread_block::thread_rank() : warp_group_::thread_rank(); }
  void sync(TS_LINE) const { whole_ ? thread_block::sync(line, file) : warp_group_::sync(line, file); }
  bool is_whole() const { return whole_; }
};
inline thread_group tiled_partition(const thread_group& parent, unsigned size) {
  if (size > 32 || (size & (size - 1))) touchstone::not_covered("a tile of a size that is no power of two up to 32");
  const unsigned lanes = (size == 32 ? 0xffffffffu : (1u << size) - 1) << (ts_lane() & ~(size - 1));
  return coalesced_group(parent.is_whole() ? lanes : lanes & parent.mask());
}
template <class Group>
inline coalesced_group binary_partition(const Group& group, bool p, TS_LINE) {
  const unsigned yes = __ballot_sync(group.mask(), p, line, file);
  return coalesced_group(p ? yes : group.mask() & ~yes, p ? 0 : 1, 2);
}
template <class Group, class Label>
inline coalesced_group labeled_partition(const Group& group, Label label, TS_LINE) {
  const unsigned mine = __match_any_sync(group.mask(), static_cast<int>(label), line, file);
  return coalesced_group(mine);
}

template <class T>
struct plus {
  T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
  T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
  T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
  T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
  T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
  T operator()(T a, T b) const { return a ^ b; }
};

template <unsigned Size, class P, class T, class Op>
inline T reduce(const thread_block_tile<Size, P>& tile, T value, Op op, TS_LINE) {
  for (unsigned step = Size / 2; step > 0; step /= 2) value = op(value, tile.shfl_xor(value, step, line, file));
  return value;
}
template <class T, class Op>
inline T reduce(const coalesced_group& group, T value, Op op, TS_LINE) {
  T total = group.shfl(value, 0, line, file);
  for (unsigned rank = 1; rank < group.size(); ++rank) total = op(total, group.shfl(value, static_cast<int>(rank),
      line, file));
  return total;
}
template <class Group, class T, class Op>
inline T inclusive_scan(const Group& group, T value, Op op, TS_LINE) {
  for (unsigned step = 1; step < group.size(); step *= 2) {
    const T before = group.shfl_up(value, step, line, file);
    if (group.thread_rank() >= step) value = op(before, value);
  }
  return value;
}
template <class Group, class T>
inline T inclusive_scan(const Group& group, T value, TS_LINE) {
  return inclusive_scan(group, value, plus<T>(), line, file);
}
template <class Group, class T, class Op>
inline T exclusive_scan(const Group& group, T value, Op op, TS_LINE) {
  const T before = group.shfl_up(inclusive_scan(group, value, op, line, file), 1, line, file);
  return group.thread_rank() ? before : T();
}
template <class Group, class T>
inline T exclusive_scan(const Group& group, T value, TS_LINE) {
  return exclusive_scan(group, value, plus<T>(), line, file);
}
template <class Group, class F>
inline void invoke_one(const Group& group, F&& f) {
  if (group.thread_rank() == 0) f();
}

// Copies are asynchronous in 16, 8 or 4 bytes where addresses and size allow it.
template <class Group>
inline void memcpy_async(const Group& group, void* to, const void* from, size_t bytes) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  const int word = both % 16 == 0 ? 16 : both % 8 == 0 ? 8 : both % 4 == 0 ? 4 : 1;
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  for (size_t at = group.thread_rank() * static_cast<size_t>(word); at < bytes; at +=
      group.size() * static_cast<size_t>(word)) {
    if (word > 1) ts_copy_async(target + at, source + at, word, word, touchstone::here());
    else target[at] = source[at];
  }
  ts_copy_commit();
}
template <class Group, class T, class Shape>
inline void memcpy_async(const Group& group, T* to, const T* from, Shape bytes) {
  memcpy_async(group, static_cast<void*>(to), static_cast<const void*>(from), static_cast<size_t>(bytes));
}
template <class Group, class T>
inline void memcpy_async(const Group& group, T* to, size_t room, const T* from, size_t count) {
  memcpy_async(group, static_cast<void*>(to), static_cast<const void*>(from), (count < room ?
      count : room) * sizeof(T));
}
template <class Group>
inline void wait(const Group& group, TS_LINE) {
  ts_copy_wait(0);
  group.sync(line, file);
}
template <unsigned Stages, class Group>
inline void wait_prior(const Group& group, TS_LINE) {
  ts_copy_wait(Stages);
  group.sync(line, file);
}

template <class Group>
inline void sync(const Group& group, TS_LINE) {
  group.sync(line, file);
}

}  // namespace cooperative_groups
