// What Hopper's instructions are translated to: barriers that count bytes, the copy engine, clusters, wgmma.
#pragma once

struct alignas(64) CUtensorMap {  // what the host encoded of an array
  unsigned long long opaque[16];
};
enum CUtensorMapDataType {  // which classes name that kernels use
  CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_UINT16, CU_TENSOR_MAP_DATA_TYPE_UINT32,
  CU_TENSOR_MAP_DATA_TYPE_INT32, CU_TENSOR_MAP_DATA_TYPE_UINT64, CU_TENSOR_MAP_DATA_TYPE_INT64,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ
};
enum CUtensorMapSwizzle {
  CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B
};

namespace touchstone {
namespace ptx {

TS_PLAIN inline void mbarrier_init(char* p, uint32_t count) { ts_mbarrier_init(p, count, TS_PC); }
TS_PLAIN inline uint64_t mbarrier_arrive(char* p, uint32_t count, uint32_t bytes) {
  return ts_mbarrier_arrive(p, count, bytes, 0, TS_PC);
}
TS_PLAIN inline uint64_t mbarrier_drop(char* p, uint32_t count = 1, uint32_t bytes = 0) {
  return ts_mbarrier_arrive(p, count, bytes, 1, TS_PC);
}
TS_PLAIN inline void mbarrier_expect(char* p, int64_t bytes) { ts_mbarrier_expect(p, bytes, TS_PC); }
TS_PLAIN inline void mbarrier_landed(char* p, int64_t bytes) { ts_mbarrier_landed(p, bytes, TS_PC); }
TS_PLAIN inline bool mbarrier_passed(char* p, uint64_t state, bool parity, bool waits = false, TS_LINE) {
  return ts_mbarrier_passed(p, state, parity, waits, line, file, TS_PC);
}

// The thread's copies by cp.async are done with this, and one arrival more, which is expected already where `counted`.
TS_PLAIN inline void copies_arrive(char* p, bool counted) {
  ts_copy_commit();
  ts_copy_wait(0);
  if (counted) ts_mbarrier_arrive(p, 1, 0, 0, TS_PC);
}

TS_PLAIN inline uint32_t mapa(uint32_t address, uint32_t rank) { return ts_cluster_address(address, rank, TS_PC); }
TS_PLAIN inline uint64_t mapa_generic(uint64_t address, uint32_t rank) {
  return reinterpret_cast<uint64_t>(ts_cluster_pointer(reinterpret_cast<void*>(address), rank, TS_PC));
}
__forceinline__ uint3 cluster_dim() { return unpack3(ts_cluster_dim()); }
__forceinline__ uint3 cluster_index() { return unpack3(ts_cluster_index()); }
__forceinline__ uint32_t cluster_blocks() { return cluster_dim().x * cluster_dim().y * cluster_dim().z; }
__forceinline__ uint32_t block_rank() { return ts_cluster_rank(); }
__forceinline__ uint32_t blocks_in(char axis) {
  return axis == 'x' ? gridDim.x / cluster_dim().x : axis == 'y' ? gridDim.y / cluster_dim().y :
      gridDim.z / cluster_dim().z;
}
__forceinline__ uint3 block_in_cluster() {
  const uint3 size = cluster_dim(), at = blockIdx;
  return uint3{at.x % size.x, at.y % size.y, at.z % size.z};
}
TS_PLAIN inline void cluster_arrive() { ts_cluster_arrive(TS_PC); }
TS_PLAIN inline void cluster_wait(TS_LINE) { ts_cluster_wait(line, file); }

// The lane that is chosen is the lowest of those in the mask.
inline uint32_t elect(uint32_t mask, bool* chosen, TS_LINE) {
  ts_warp(mask, nullptr, nullptr, "elect.sync", line, file);
  const uint32_t lane = mask ? static_cast<uint32_t>(__builtin_ctz(mask)) : 0;
  *chosen = lane == ts_lane();
  return lane;
}

template <int rank>
struct Box {
  int32_t at[rank];
};
template <int rank>
TS_PLAIN void tensor_load(char* to, char* map, Box<rank> box, char* barrier, uint32_t blocks) {
  ts_tensor_load(to, map, box.at, rank, barrier, blocks, TS_PC);
}
template <int rank>
TS_PLAIN void tensor_store(char* map, Box<rank> box, char* from, int reduction) {
  ts_tensor_store(map, box.at, rank, from, reduction, TS_PC);
}
TS_PLAIN inline void bulk_load(char* to, char* from, uint32_t bytes, char* barrier, uint32_t blocks) {
  ts_bulk_load(to, from, bytes, barrier, blocks, TS_PC);
}
TS_PLAIN inline void bulk_store(char* to, char* from, uint32_t bytes, int reduction, int type) {
  ts_bulk_store(to, from, bytes, reduction, type, TS_PC);
}

// d: the variables that are the accumulators, which keep their places until the product is waited for.
struct Left {  // a, in registers or by its descriptor
  uint64_t descriptor;
  uint32_t registers[4];
  bool loaded;
};
template <int n, int k, int a_type, int b_type, int d_type, bool saturates, class... D>
TS_PLAIN void wgmma(Left a, uint64_t b, bool adds, int scale_a, int scale_b, int a_along_m, int b_along_n,
                    D&... d) {
  static_assert(((sizeof(D) == 4) && ...), "an accumulator of wgmma has 32 bits");
  uint32_t* const places[] = {reinterpret_cast<uint32_t*>(&d)...};
  const ts_wgmma_form form = {n, k, a_type, b_type, d_type, scale_a < 0, scale_b < 0, a_along_m, b_along_n, adds,
                              saturates};
  ts_wgmma(&form, a.loaded ? a.registers : nullptr, a.descriptor, b, places, sizeof...(D), TS_PC);
}

inline void wgmma_wait(int pending, TS_LINE) { ts_wgmma_wait(pending, line, file); }

// Neighbours in memory, each one added to atomically.
template <int N>
TS_PLAIN void add_several(char* p, Vector<float, N> value) {
  ts_check(p, 4 * N, 2, 4 * N, TS_PC);
  for (int i = 0; i < N; ++i) {
    uint32_t* word = reinterpret_cast<uint32_t*>(p) + i;
    uint32_t before = __atomic_load_n(word, __ATOMIC_SEQ_CST), after;
    do {
      after = bit_cast<uint32_t>(bit_cast<float>(before) + value.x[i]);
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  }
  ts_atomic_done(1, TS_PC);
}

}  // namespace ptx
}  // namespace touchstone

inline void __barrier_sync(unsigned number, TS_LINE) { touchstone::ptx::barrier(number, 0, true, line, file); }
inline void __barrier_sync_count(unsigned number, unsigned threads, TS_LINE) {
  touchstone::ptx::barrier(number, threads, true, line, file);
}
TS_PLAIN inline void __cluster_barrier_arrive() { ts_cluster_arrive(TS_PC); }
TS_PLAIN inline void __cluster_barrier_arrive_relaxed() { ts_cluster_arrive(TS_PC); }
inline void __cluster_barrier_wait(TS_LINE) { ts_cluster_wait(line, file); }
inline dim3 __clusterDim() { return touchstone::ptx::cluster_dim(); }
inline dim3 __clusterIdx() { return touchstone::ptx::cluster_index(); }
inline dim3 __clusterRelativeBlockIdx() { return touchstone::ptx::block_in_cluster(); }
inline unsigned __clusterRelativeBlockRank() { return ts_cluster_rank(); }
inline unsigned __clusterSizeInBlocks() { return touchstone::ptx::cluster_blocks(); }
TS_PLAIN inline void* __cluster_map_shared_rank(const void* pointer, unsigned rank) {
  return ts_cluster_pointer(pointer, rank, TS_PC);
}
