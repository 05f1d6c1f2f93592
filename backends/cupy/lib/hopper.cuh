// Hopper's own instructions, one a function: barriers in shared memory, the copy engine (TMA), clusters and products of
// a warpgroup. They need sm_90a; the emulator takes them as they are.
//
// The copy engine writes a row of 128 bytes as eight chunks of 16, with chunk i of row r at place i ^ r % 8 ("128-byte
// swizzle"), so that neither rows nor columns of chunks collide in the banks. Eight such rows, 1024 bytes that begin at
// a multiple of 1024, are the unit that wgmma's descriptors count in.
#pragma once
#include "common.cuh"
#include "kept.cuh"

// What the host encoded of a matrix (hopper.py), a kernel's parameter `const __grid_constant__ TensorMap`.
struct __align__(64) TensorMap {
    unsigned long long opaque[16];
};

using Barrier = unsigned long long;  // in shared memory

// A phase ends after `arrivals` and all bytes expected; only then the next begins. Phases have parity 0, 1, 0 ...
__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After the inits of a thread: shows them to the cluster and to the copy engine.
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Arrives, and expects `bytes` more of the copy engine in this phase.
__device__ inline void barrier_expect(Barrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// Arrives, and expects nothing.
__device__ inline void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives at the same barrier of block `rank` of the cluster.
__device__ inline void barrier_arrive(Barrier* barrier, int rank) {
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(shared_address(barrier)), "r"(rank)
                 : "memory");
}

// True if the phase of that parity has ended; before the first phase, true of parity 1. May sleep a while.
__device__ inline bool barrier_try_wait(Barrier* barrier, int parity) {
    unsigned ended;
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return ended;
}

__device__ inline void barrier_wait(Barrier* barrier, int parity) {
    while (!barrier_try_wait(barrier, parity)) {}
}

// A stage of a ring and the parity of its lap, for the one who fills the ring and for those who empty it.
template <int stages> struct Slot {
    int stage = 0, parity = 0;

    __device__ void next() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// Of `heads` with so many tiles each, taken `together` at a time, of which the first tiles of all come first: the head
// of tile `number`, and which of its tiles that is. The launcher: heads_together in attention.py.
struct InOrder {
    int head, tile;

    __device__ InOrder(int number, int heads, int tiles, int together) {
        const int before = number / (together * tiles) * together, within = number - before * tiles;
        const int width = min(together, heads - before);
        head = before + within % width, tile = within / width;
    }
};

// The tiles of a block that stays for several: one of every gridDim.x, from the left and from the right by turns, so
// that no block has the larger one each time.
template <typename Work> __device__ inline void for_tiles(int tiles, const Work& work) {
    const int back = 2 * (gridDim.x - blockIdx.x) - 1;
    for (int number = blockIdx.x, step = back; number < tiles; number += step, step = 2 * gridDim.x - step) work(number);
}

__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }

// Shows nothing of what was written before.
__device__ inline void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }

__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Starts to store to the same place of block `rank` of the cluster; the bytes count at that block's barrier.
__device__ inline void cluster_store(float* place, int rank, float value, Barrier* barrier) {
    asm volatile("{\n"
                 ".reg .b32 there, counts;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 counts, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [counts];\n"
                 "}" ::"r"(shared_address(place)), "r"(shared_address(barrier)), "r"(rank), "f"(value)
                 : "memory");
}

// Four neighbours at the same place of block `rank` of the cluster, the first on 16 bytes.
__device__ inline float4 cluster_load(const float* place, int rank) {
    float4 four;
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n"
                 "}"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(shared_address(place)), "r"(rank)
                 : "memory");
    return four;
}

// Starts copying `bytes` to shared memory, all three of them multiples of 16; they count at the barrier.
__device__ inline void copy_in(void* shared, const void* global, int bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// The same, of lines that the L2 cache gives up last.
__device__ inline void copy_in_kept(void* shared, const void* global, int bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_last())
                 : "memory");
}

// Starts copying the map's box at column x and row y to shared memory, with zeros for what is outside of the matrix;
// all bytes of the box count at the barrier.
__device__ inline void copy_in(void* shared, const TensorMap& map, int x, int y, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3}], [%4];"
                 ::"r"(shared_address(shared)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
                 : "memory");
}

// The same to the same place of every block whose bit is set in `blocks`; each one's own barrier counts.
__device__ inline void copy_in(void* shared, const TensorMap& map, int x, int y, Barrier* barrier, int blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;"
                 ::"r"(shared_address(shared)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier)),
                 "h"(static_cast<short>(blocks))
                 : "memory");
}

// Of a map with four axes: the box at (x, y, z, w), of which z and w are one long.
__device__ inline void copy_in(void* shared, const TensorMap& map, int x, int y, int z, int w, Barrier* barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3, %4, %5}], [%6];"
                 ::"r"(shared_address(shared)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
                 : "memory");
}

// Starts copying a box from shared memory; what would be outside of the matrix is left out.
__device__ inline void copy_out(const TensorMap& map, int x, int y, const void* shared) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(shared_address(shared))
                 : "memory");
}

// Of a map with three axes: the box at (x, y, z), of which z is one long.
__device__ inline void copy_out(const TensorMap& map, int x, int y, int z, const void* shared) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 ::"l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(shared))
                 : "memory");
}

__device__ inline void copy_out_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last `pending` groups of this thread have been read from shared memory.
template <int pending> __device__ inline void copy_out_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Between a thread's own writes to shared memory and a barrier, after which the copy engine or wgmma reads them.
__device__ inline void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers of each thread of this warpgroup; a warpgroup that takes more waits until another has given them back.
template <int registers> __device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> __device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Waits until `threads` threads of the block, whole warps, have come to the barrier of that number, 1 to 15.
template <int threads> __device__ inline void sync_threads(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// Comes to the barrier of that number, at which others of the `threads` wait, and goes on.
template <int threads> __device__ inline void arrive_threads(int number) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(threads) : "memory");
}

// Adds to four neighbours in global memory, the first on 16 bytes.
__device__ inline void atomic_add(float* target, const float (&values)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(target), "f"(values[0]), "f"(values[1]),
                 "f"(values[2]), "f"(values[3])
                 : "memory");
}

// ldmatrix_x4 the other way: lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void stmatrix_x4(void* row, unsigned first, unsigned second, unsigned third, unsigned fourth) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared_address(row)), "r"(first), "r"(second), "r"(third), "r"(fourth)
                 : "memory");
}

// Two neighbours of a row, rounded.
template <typename Element> __device__ inline unsigned pack_pair(float low, float high) {
    const Element two[2] = {from_float<Element>(low), from_float<Element>(high)};
    unsigned bits;
    memcpy(&bits, two, 4);
    return bits;
}

// An operand of wgmma in shared memory with the 128-byte swizzle. Rows of 128 bytes run along k ("k-major") or along m
// or n; groups of eight rows are 1024 bytes apart. Rows along n hold 64 columns, and `next` is how many bytes further
// those of the next 64 columns are. In units of 16 bytes: the start in bits 0 to 13, `next` from 16, 1024 from 32. The
// start counts within the block: above bit 23 of an address stands the block's rank in its cluster.
__device__ inline unsigned long long descriptor(const void* tile, int next) {
    return (1ull << 62) | (1024ull >> 4 << 32) | ((unsigned long long)(next >> 4) << 16) |
           (shared_address(tile) & 0x3ffff) >> 4;
}

// Before the first wgmma, and after registers that one takes were written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int pending> __device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// The compiler moves no access of d across this: it knows nothing of what is under way.
template <int count> __device__ inline void wgmma_settle(float (&d)[count][4]) {
#pragma unroll
    for (int j = 0; j < count; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[j][i])::"memory");
}

// wgmma(d, a, b, type, add): d = a * b, plus d where `add`, for a (64, 16) and b (16, columns) in shared memory. Warp w
// of the warpgroup has rows 16 w to 16 w + 15; of these, d[j] has columns 8 j + 2 * member and the next one of row
// group, then of row group + 8. The template says whether rows in shared memory run along k, or along m or n.
// The other form has a in registers, laid out over the lanes as for mma_m16n8k16; they stay as they are until the wait.
#define WGMMA_FOUR(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define WGMMA_SIXTEEN(j) WGMMA_FOUR(j), WGMMA_FOUR(j + 1), WGMMA_FOUR(j + 2), WGMMA_FOUR(j + 3)
#define WGMMA_32(j) WGMMA_SIXTEEN(j), WGMMA_SIXTEEN(j + 4)
#define WGMMA_64(j) WGMMA_32(j), WGMMA_32(j + 8)
#define WGMMA_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32                                                                                                 \
    WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64                                                                                                 \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_96                                                                                                 \
    WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, "      \
    "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_128                                                                                                \
    WGMMA_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "          \
    "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA(columns, element, type, names, add_name, rest, ...)                                                      \
    template <bool a_along_k, bool b_along_k>                                                                          \
    __device__ inline void wgmma(                                                                                      \
        float (&d)[columns / 8][4], unsigned long long a, unsigned long long b, element, bool add = true               \
    ) {                                                                                                                \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_name ", 0;\n"                                         \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names "}, " rest       \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b), "n"(!a_along_k), "n"(!b_along_k), "r"(int(add)));                               \
    }
#define WGMMA_LEFT(columns, element, type, names, rest, ...)                                                           \
    template <bool b_along_k>                                                                                          \
    __device__ inline void wgmma(                                                                                      \
        float (&d)[columns / 8][4], const unsigned (&a)[4], unsigned long long b, element                              \
    ) {                                                                                                                \
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names "}, " rest       \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(!b_along_k));                           \
    }
#define WGMMA_TYPE(element, type)                                                                                      \
    WGMMA(16, element, type, WGMMA_NAMES_8, "%12", "%8, %9, add, 1, 1, %10, %11;\n}", WGMMA_FOUR(0), WGMMA_FOUR(1))    \
    WGMMA(32, element, type, WGMMA_NAMES_16, "%20", "%16, %17, add, 1, 1, %18, %19;\n}", WGMMA_SIXTEEN(0))             \
    WGMMA(64, element, type, WGMMA_NAMES_32, "%36", "%32, %33, add, 1, 1, %34, %35;\n}", WGMMA_32(0))                  \
    WGMMA(128, element, type, WGMMA_NAMES_64, "%68", "%64, %65, add, 1, 1, %66, %67;\n}", WGMMA_64(0))                 \
    WGMMA(192, element, type, WGMMA_NAMES_96, "%100", "%96, %97, add, 1, 1, %98, %99;\n}", WGMMA_64(0), WGMMA_32(16))  \
    WGMMA(256, element, type, WGMMA_NAMES_128, "%132", "%128, %129, add, 1, 1, %130, %131;\n}", WGMMA_64(0),           \
          WGMMA_64(16))                                                                                                \
    WGMMA_LEFT(64, element, type, WGMMA_NAMES_32, "{%32, %33, %34, %35}, %36, add, 1, 1, %37;\n}", WGMMA_32(0))        \
    WGMMA_LEFT(128, element, type, WGMMA_NAMES_64, "{%64, %65, %66, %67}, %68, add, 1, 1, %69;\n}", WGMMA_64(0))

WGMMA_TYPE(__half, "f16")
WGMMA_TYPE(__nv_bfloat16, "bf16")
