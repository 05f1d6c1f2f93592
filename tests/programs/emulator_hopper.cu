// Hopper's instructions one by one, and mistakes with them: `fault` says which a kernel makes.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ int fault;

struct alignas(64) Map {
  unsigned long long opaque[16];
};

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void init(unsigned long long* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ inline void expect(unsigned long long* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes));
}
// As most public kernels wait: the loop is in the assembly.
__device__ inline void wait(unsigned long long* barrier, int parity) {
  asm volatile("{\n.reg .pred P1;\n"
               "LAB_WAIT:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
               "@P1 bra DONE;\n"
               "bra LAB_WAIT;\n"
               "DONE:\n}" ::"r"(shared_address(barrier)), "r"(parity));
}

extern __shared__ __align__(1024) unsigned char tile[];

// The bytes of a box as they come to lie in shared memory.
#define LOADED(name, rank, places, ...)                                                                              \
  extern "C" __global__ void name(                                                                                   \
      const __grid_constant__ Map map, const int* at, unsigned char* out, int bytes) {                               \
    __shared__ unsigned long long barrier;                                                                           \
    if (threadIdx.x == 0) {                                                                                          \
      init(&barrier, 1);                                                                                             \
      expect(&barrier, fault == 1 ? bytes - 16 : fault == 2 ? bytes + 16 : bytes);                                   \
      asm volatile("cp.async.bulk.tensor." #rank "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], " \
                   "[%1, {" places "}], [%2];" ::"r"(shared_address(tile)), "l"(&map), "r"(shared_address(&barrier)), \
                   __VA_ARGS__                                                                                       \
                   : "memory");                                                                                      \
    }                                                                                                                \
    __syncthreads();                                                                                                 \
    if (fault != 3) wait(&barrier, 0);                                                                               \
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = tile[i];                                          \
  }
LOADED(loaded1, 1, "%3", "r"(at[0]))
LOADED(loaded2, 2, "%3, %4", "r"(at[0]), "r"(at[1]))
LOADED(loaded3, 3, "%3, %4, %5", "r"(at[0]), "r"(at[1]), "r"(at[2]))
LOADED(loaded5, 5, "%3, %4, %5, %6, %7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]))

__device__ inline void commit() { asm volatile("cp.async.bulk.commit_group;"); }

// Bytes in shared memory to a box, twice: the tile is overwritten in between.
extern "C" __global__ void stored(const __grid_constant__ Map map, const unsigned char* in, int x, int y, int bytes) {
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[i] = in[turn * bytes + i];
    if (fault != 3) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                   "r"(x), "r"(y + turn * 8), "r"(shared_address(tile)));
      if (fault != 1) commit();
      if (fault != 2) asm volatile("cp.async.bulk.wait_group.read 0;");
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group 0;");
}

// y = 2 x by bulk copies, added to what is there where `adds`.
extern "C" __global__ void doubled(const float* x, float* y, int bytes, int adds) {
  __shared__ unsigned long long barrier;
  __shared__ __align__(16) float row[256];
  if (threadIdx.x == 0) {
    init(&barrier, 1);
    expect(&barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(row)), "l"(x), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
  }
  __syncthreads();
  wait(&barrier, 0);
  if (threadIdx.x * 4 < bytes && fault != 2) row[threadIdx.x] *= 2;  // without, the row only passes through
  if (!fault) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (fault == 3 && threadIdx.x == 0) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == 0) {
    if (adds)
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(y),
                   "r"(shared_address(row)), "r"(bytes) : "memory");
    else
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y), "r"(shared_address(row)),
                   "r"(bytes) : "memory");
    commit();
    asm volatile("cp.async.bulk.wait_group 0;");
  }
}

// Each block of a cluster of four brings a quarter of a box to all of them, and then reads its neighbour's memory.
extern "C" __global__ void __cluster_dims__(2, 2, 1) shared_out(const __grid_constant__ Map map, float* out) {
  __shared__ unsigned long long barrier;
  __shared__ float seen;
  unsigned rank, blocks;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  if (threadIdx.x == 0) {
    init(&barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (fault != 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  if (threadIdx.x == 0) {
    expect(&barrier, 4 * 128);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tile + rank * 128)), "l"(&map), "r"(0),
                 "r"(rank), "r"(shared_address(&barrier)), "h"(short((1 << blocks) - 1)) : "memory");
  }
  __syncthreads();
  wait(&barrier, 0);
  const float own = reinterpret_cast<float*>(tile)[threadIdx.x];
  if (threadIdx.x == 0) {
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "st.shared::cluster.f32 [remote], %2;\n}" ::"r"(shared_address(&seen)), "r"((rank + 1) % blocks),
                 "f"(float(rank)));
  }
  auto cluster = cooperative_groups::this_cluster();
  if (fault != 2) cluster.sync();
  const float before = *cluster.map_shared_rank(&seen, rank);
  out[(blockIdx.y * gridDim.x + blockIdx.x) * 128 + threadIdx.x] = own + 1000 * before;
  if (fault != 3) cluster.sync();
  if (fault == 3) out[0] = *cluster.map_shared_rank(&seen, (rank + 1) % blocks);
}

// The cluster's barrier, at which threads that have ended are not waited for.
extern "C" __global__ void met(int* out) {
  if (threadIdx.x >= 32) return;
  if (fault != 2) asm volatile("barrier.cluster.arrive.aligned;");
  if (fault == 1) asm volatile("barrier.cluster.arrive.aligned;");
  asm volatile("barrier.cluster.wait.aligned;");
  if (fault == 3) {
    if (blockIdx.x == 1) asm volatile("bar.sync 1, 64;");
    asm volatile("barrier.cluster.arrive.aligned;");
    asm volatile("barrier.cluster.wait.aligned;");
  }
  if (fault == 4 && blockIdx.x == 0) {  // the other block is at a barrier of its own, where nobody else can come
    asm volatile("barrier.cluster.arrive.aligned;");
    asm volatile("barrier.cluster.wait.aligned;");
  } else if (fault == 4 && threadIdx.x < 16) {
    asm volatile("barrier.cluster.arrive;");
    asm volatile("barrier.cluster.wait;");
  } else if (fault == 4) {
    __syncthreads();
  }
  atomicAdd(out, 1);
}

// Two neighbours to the next block of the cluster, and a sum there, both of which its barrier counts.
extern "C" __global__ void told(int* out, int blocks) {
  __shared__ unsigned long long barrier;
  __shared__ int2 pairs[32];
  __shared__ unsigned sum;
  const unsigned rank = blockIdx.x % blocks, next = (rank + 1) % blocks;
  if (threadIdx.x == 0) {
    init(&barrier, 1);
    sum = 0;
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  asm volatile("barrier.cluster.arrive.release;");
  asm volatile("barrier.cluster.wait.acquire;");
  const int value = 100 * blockIdx.x + threadIdx.x;
  unsigned there, counts, sums;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(&pairs[threadIdx.x])), "r"(next));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(sums) : "r"(shared_address(&sum)), "r"(next));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(counts) : "r"(shared_address(&barrier)), "r"(fault == 2 ? rank : next));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.s32 [%0], {%1, %2}, [%3];"
               ::"r"(there), "r"(value), "r"(-value), "r"(counts) : "memory");
  asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
               ::"r"(sums), "r"(threadIdx.x), "r"(counts) : "memory");
  if (threadIdx.x == 0) expect(&barrier, 32 * (fault == 3 ? 8 : 12));
  if (fault != 1) wait(&barrier, 0);
  const int2 pair = pairs[31 - threadIdx.x];
  out[blockIdx.x * 32 + threadIdx.x] = pair.x + pair.y + sum == 496 ? pair.x : -1;
  if (fault) {  // the other blocks may still write here
    asm volatile("barrier.cluster.arrive.release;");
    asm volatile("barrier.cluster.wait.acquire;");
  }
}

// Copies of each thread that a barrier counts.
extern "C" __global__ void counted(const int4* x, int4* y) {
  __shared__ unsigned long long barrier;
  __shared__ int4 row[64];
  if (threadIdx.x == 0) init(&barrier, 64);
  __syncthreads();
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(row + threadIdx.x)),
               "l"(x + threadIdx.x));
  if (fault != 1) asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier)));
  else asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)));
  wait(&barrier, 0);
  y[threadIdx.x] = row[63 - threadIdx.x];
}

// Each thread adds to four neighbours at once.
extern "C" __global__ void added(float* x) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(x), "f"(1.0f), "f"(2.0f), "f"(3.0f), "f"(4.0f));
}

// Arrivals of all threads of the other blocks at a barrier of the first.
extern "C" __global__ void arrivals(int* out, int count) {
  __shared__ unsigned long long barrier;
  auto cluster = cooperative_groups::this_cluster();
  if (threadIdx.x == 0) init(&barrier, count);
  cluster.sync();
  asm volatile("{\n.reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %0, 0;\n"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)));
  if (cluster.block_rank() == 0) wait(&barrier, 0);
  unsigned chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
  if (chosen) atomicAdd(out, 1);
  cluster.sync();
}

// d = a b (+ d) of 64 rows and 16 columns. `memory` is copied to shared memory; descriptors count from its start.
#define PRODUCT(name, words, Sum, sums, mark, rest)                                                                   \
  extern "C" __global__ void name(                                                                                    \
      const unsigned char* memory, int bytes, unsigned long long a, unsigned long long b, Sum* d, int adds) {         \
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[i] = memory[i];                                        \
    asm volatile("fence.proxy.async;" ::: "memory");                                                                  \
    __syncthreads();                                                                                                  \
    const unsigned start = (shared_address(tile) & 0x3ffff) >> 4;                                                     \
    Sum s[sums];                                                                                                      \
    for (int i = 0; i < sums; ++i) s[i] = d[threadIdx.x * sums + i];                                                  \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #mark ", 0;\n"                                                  \
                 "wgmma.mma_async.sync.aligned." words " " rest "\n}"                                                 \
                 : SUMS_##sums                                                                                        \
                 : "r"(adds), "l"(a + start), "l"(b + start));                                                        \
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");                  \
    for (int i = 0; i < sums; ++i) d[threadIdx.x * sums + i] = s[i];                                                  \
  }
#define SUMS_8 "+r"(B(s[0])), "+r"(B(s[1])), "+r"(B(s[2])), "+r"(B(s[3])), "+r"(B(s[4])), "+r"(B(s[5])), \
    "+r"(B(s[6])), "+r"(B(s[7]))
#define SUMS_4 "+r"(B(s[0])), "+r"(B(s[1])), "+r"(B(s[2])), "+r"(B(s[3]))
__device__ inline unsigned& B(float& x) { return reinterpret_cast<unsigned&>(x); }
__device__ inline unsigned& B(int& x) { return reinterpret_cast<unsigned&>(x); }
__device__ inline unsigned& B(unsigned& x) { return x; }
#define EIGHT "{%0, %1, %2, %3, %4, %5, %6, %7}, %9, %10, p"
#define FOUR "{%0, %1, %2, %3}, %5, %6, p"
PRODUCT(f16_kk, "m64n16k16.f32.f16.f16", float, 8, 8, EIGHT ", 1, 1, 0, 0;")
PRODUCT(f16_mn, "m64n16k16.f32.f16.f16", float, 8, 8, EIGHT ", 1, 1, 1, 1;")
PRODUCT(f16_kn, "m64n16k16.f32.f16.f16", float, 8, 8, EIGHT ", -1, 1, 0, 1;")
PRODUCT(bf16_kk, "m64n16k16.f32.bf16.bf16", float, 8, 8, EIGHT ", -1, -1, 0, 0;")
PRODUCT(f16_half, "m64n16k16.f16.f16.f16", unsigned, 4, 4, FOUR ", 1, 1, 0, 0;")
PRODUCT(tf32_kk, "m64n16k8.f32.tf32.tf32", float, 8, 8, EIGHT ", 1, 1;")
PRODUCT(s8_kk, "m64n16k32.s32.s8.s8", int, 8, 8, EIGHT ";")
PRODUCT(u8s8_kk, "m64n16k32.s32.u8.s8.satfinite", int, 8, 8, EIGHT ";")
PRODUCT(e4m3_kk, "m64n16k32.f32.e4m3.e5m2", float, 8, 8, EIGHT ", 1, 1;")

// d = -a b of 64 rows and 16 columns, a from registers.
extern "C" __global__ void from_registers(
    const unsigned char* memory, int bytes, const uint4* a, unsigned long long b, float* d) {
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) tile[i] = memory[i];
  __syncthreads();
  const uint4 own = a[threadIdx.x];
  float s[8];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
               "{%8, %9, %10, %11}, %12, 0, 1, -1, 1;"
               : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
               : "r"(own.x), "r"(own.y), "r"(own.z), "r"(own.w), "l"(b + ((shared_address(tile) & 0x3ffff) >> 4)));
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 8; ++i) d[threadIdx.x * 8 + i] = s[i];
}

// A chain of two products and what can go wrong around it: b is replaced while they are under way, for the next one.
extern "C" __global__ void chained(const __half* a, const __half* b, float* d, unsigned long long layout) {
  __half* left = reinterpret_cast<__half*>(tile);
  __half* right = left + 64 * 16;
  float s[8] = {};
  for (int i = threadIdx.x; i < 64 * 16; i += 128) left[i] = a[i];
  for (int turn = 0; turn < 2; ++turn) {
    for (int i = threadIdx.x; i < 16 * 16; i += 128) right[i] = b[turn * 256 + i];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (fault == 7 && threadIdx.x >= 96) {
      __syncthreads();
      continue;
    }
    const unsigned long long da = layout | (shared_address(left) & 0x3ffff) >> 4;
    const unsigned long long db = layout | (shared_address(right) & 0x3ffff) >> 4;
    if (fault != 1) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, "
                 "1, 1, 0, 0;\n}"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
                 : "l"(da), "l"(db));
    if (fault != 2) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    if (fault == 5 && turn == 0) s[0] = s[0] * 0.5f;
    if (fault != 3 || turn == 1) {
      if (fault == 4) asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      else asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    if (fault == 6 && threadIdx.x == 5) return;
    __syncthreads();
  }
  for (int i = 0; i < 8; ++i) d[threadIdx.x * 8 + i] = s[i];
}
