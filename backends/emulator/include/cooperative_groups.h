// Cooperative groups: the grid, the block, tiles of a warp, coalesced threads.
#pragma once

namespace cooperative_groups {

class grid_group {
 public:
  void sync(TS_LINE) const { ts_syncgrid(line, file); }
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

class thread_block {
 public:
  void sync(TS_LINE) const { ts_syncthreads(TS_SYNC, 0, line, file); }
  unsigned thread_rank() const { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  unsigned num_threads() const { return blockDim.x * blockDim.y * blockDim.z; }
  unsigned size() const { return num_threads(); }
  dim3 group_index() const { return blockIdx; }
  dim3 thread_index() const { return threadIdx; }
  dim3 group_dim() const { return blockDim; }
  dim3 dim_threads() const { return blockDim; }
};
inline thread_block this_thread_block() { return thread_block(); }

template <unsigned Size, class Parent = void>
class thread_block_tile {
  static_assert(Size > 0 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");
  static unsigned mask() { return (Size == 32 ? 0xffffffffu : (1u << Size % 32) - 1) << (ts_lane() & ~(Size - 1)); }

 public:
  void sync(TS_LINE) const { ts_warp(mask(), nullptr, nullptr, "tile.sync", line, file); }
  unsigned thread_rank() const { return ts_lane() & (Size - 1); }
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  unsigned meta_group_rank() const { return this_thread_block().thread_rank() / Size; }
  unsigned meta_group_size() const { return (this_thread_block().num_threads() + Size - 1) / Size; }
  template <class T>
  T shfl(T value, int from, TS_LINE) const {
    return __shfl_sync(mask(), value, from, Size, line, file);
  }
  template <class T>
  T shfl_down(T value, unsigned by, TS_LINE) const {
    return __shfl_down_sync(mask(), value, by, Size, line, file);
  }
  template <class T>
  T shfl_up(T value, unsigned by, TS_LINE) const {
    return __shfl_up_sync(mask(), value, by, Size, line, file);
  }
  template <class T>
  T shfl_xor(T value, int by, TS_LINE) const {
    return __shfl_xor_sync(mask(), value, by, Size, line, file);
  }
  int any(int p, TS_LINE) const { return __any_sync(mask(), p, line, file); }
  int all(int p, TS_LINE) const { return __all_sync(mask(), p, line, file); }
  unsigned ballot(int p, TS_LINE) const { return __ballot_sync(mask(), p, line, file) >> (ts_lane() & ~(Size - 1)); }
};
template <unsigned Size>
inline thread_block_tile<Size> tiled_partition(const thread_block&) {
  return thread_block_tile<Size>();
}
template <unsigned Size, unsigned Outer>
inline thread_block_tile<Size> tiled_partition(const thread_block_tile<Outer>&) {
  static_assert(Size <= Outer, "a tile of a tile is no larger");
  return thread_block_tile<Size>();
}

// The lanes that came here together.
class coalesced_group {
  unsigned mask_;
  int lane_(int rank) const {
    unsigned rest = mask_;
    for (int i = 0; i < rank; ++i) rest &= rest - 1;
    return __builtin_ffs(static_cast<int>(rest)) - 1;
  }

 public:
  explicit coalesced_group(unsigned mask) : mask_(mask) {}
  unsigned size() const { return static_cast<unsigned>(__builtin_popcount(mask_)); }
  unsigned num_threads() const { return size(); }
  unsigned thread_rank() const { return static_cast<unsigned>(__builtin_popcount(mask_ & ((1u << ts_lane()) - 1))); }
  void sync(TS_LINE) const { ts_warp(mask_, nullptr, nullptr, "coalesced.sync", line, file); }
  template <class T>
  T shfl(T value, int rank, TS_LINE) const {
    return __shfl_sync(mask_, value, lane_(rank), 32, line, file);
  }
  int any(int p, TS_LINE) const { return __any_sync(mask_, p, line, file); }
  int all(int p, TS_LINE) const { return __all_sync(mask_, p, line, file); }
};
inline coalesced_group coalesced_threads(TS_LINE) { return coalesced_group(__activemask(line, file)); }

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
template <unsigned Size, class T, class Op>
inline T reduce(const thread_block_tile<Size>& tile, T value, Op op, TS_LINE) {
  for (unsigned step = Size / 2; step > 0; step /= 2) value = op(value, tile.shfl_xor(value, step, line, file));
  return value;
}

template <class Group>
inline void sync(const Group& group, TS_LINE) {
  group.sync(line, file);
}

}  // namespace cooperative_groups
