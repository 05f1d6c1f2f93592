// The engine's C interface: what emulated kernels, and later other front ends, call. No CUDA name appears here.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

enum ts_kind {
  TS_NOTHING,
  TS_OUT_OF_BOUNDS,
  TS_MISALIGNED,
  TS_UNINITIALISED_SHARED,
  TS_DIVERGENT_BARRIER,
  TS_DEADLOCK,
  TS_INACTIVE_LANES,
  TS_RACE,
  TS_FAULT,  // anything else: `text` says what
  TS_STALE,  // `mask` stages of `size` bytes that nobody read; here: who stored, there: who read an older one again
};

enum ts_region_kind { TS_NO_REGION, TS_ARGUMENT, TS_SHARED, TS_GLOBAL, TS_STACK, TS_HEAP };

struct ts_place {
  uint64_t pc;  // a return address within the kernel's library, or 0
  char file[200];
  int32_t line;  // where the pc is 0
  uint32_t block[3], thread[3];
  int32_t access;  // 0 read, 1 write, 2 atomic
  // Of a thread that is missing: 0 ran to its end, 1 waits at a barrier, 2 at a warp operation, 3 at the grid's
  // barrier, 4 takes no part in the warp operation.
  int32_t state;
};

struct ts_report {
  int32_t kind;
  int32_t region_kind, region_index;  // the nearest argument, shared array or global
  uint64_t address, size;
  int64_t offset;    // of the address within the region
  uint64_t extent;   // bytes of the region
  uint64_t item;     // bytes of its elements, or 0
  char name[128];    // of a shared array
  uint32_t dims[4];
  ts_place here, there;
  int32_t lane;      // the missing lane
  uint32_t mask;
  char text[400];
  uint64_t atomics;  // that were done in the whole launch
};

struct ts_range {
  uint64_t start, bytes;
  int32_t kind, index;
  int32_t writable;
  int32_t item;
  uint64_t row, pitch;  // bytes of a row, and from one to the next; 0: there are no gaps between rows
};

struct ts_options {
  int32_t order;  // 0 forward, 1 reverse, 2 shuffled
  int32_t workers;
  uint64_t seed;
  int32_t checks, races, cooperative;
  int32_t strict;  // exited threads do not count as arrived, and a barrier is one place of the text
  uint64_t stack_bytes;
  uint64_t step_limit;
  uint64_t module;  // where the kernel's library lies; what is remembered of a place is relative to it
  uint64_t readable_low, readable_high;  // its constants, which no range covers
  uint32_t cluster[3];                   // blocks of a cluster; 0 counts as 1
};

enum ts_number {
  TS_F16, TS_BF16, TS_TF32, TS_F32, TS_F64, TS_E4M3, TS_E5M2, TS_S8, TS_U8, TS_S32, TS_U32, TS_S64, TS_U64,
  TS_S16, TS_U16,
};

// What the copy engine is told of an array, axes from the innermost outwards; in the first bytes of the 128 that a
// kernel is given.
struct ts_tensor_map {
  uint64_t magic, address;
  uint64_t strides[4];  // bytes, from the second axis on
  uint32_t sizes[5];
  uint16_t box[5];
  uint8_t steps[5];  // elements from one that is taken to the next
  uint8_t rank, type, item, swizzle, fill;  // a ts_number; its bytes; 0, 32, 64 or 128; 0 or 1: NaN, all bits set
};

struct ts_writer {
  uint64_t address, size, pc;
  uint32_t block[3], thread[3];
};

typedef void (*ts_entry)(void** arguments);

int ts_launch(
    ts_entry entry, void** arguments, const uint32_t* grid, const uint32_t* block, uint64_t shared_bytes,
    const ts_range* ranges, int32_t range_count, const ts_options* options, void* writers, ts_report* report);

// Of the thread that runs. Three numbers in 64 bits: 32 for x, 16 each for y and z.
uint64_t ts_thread_index(void) __attribute__((const));
uint64_t ts_block_index(void) __attribute__((const));
uint64_t ts_block_dim(void) __attribute__((const));
uint64_t ts_grid_dim(void) __attribute__((const));
uint32_t ts_lane(void) __attribute__((const));
void* ts_dynamic_shared(void);
uint64_t ts_dynamic_shared_bytes(void);

// A `__shared__` array: its address in the block that runs.
struct ts_site {
  const char* name;
  uint64_t bytes, align, item;
  uint32_t dims[4];  // 0 where it has fewer
};
void* ts_shared(struct ts_site* site);

// Shared memory by an offset into the block's, as instructions address it; 0 for what is not shared.
uint64_t ts_shared_address(const void* pointer);
void* ts_shared_memory(uint64_t address);

// The device's heap: 0 where there is no room. What is allocated stays until it is freed, over launches too.
void* ts_heap_new(uint64_t bytes);
void ts_heap_free(void* pointer, uint64_t pc);

// Copies from global to shared memory that are done when they are waited for, and not before: until then the target
// counts as not written. `read` of `size` bytes are read, the rest becomes 0.
void ts_copy_async(void* to, const void* from, int size, int read, uint64_t pc);
void ts_copy_commit(void);
void ts_copy_wait(int pending);  // until at most so many groups of this thread are under way

// Of the block's cluster: its rank there, blocks along x, y and z, its place in the grid of clusters. Addresses of
// shared memory in the block of a rank, as numbers and as pointers.
uint32_t ts_cluster_rank(void);
uint64_t ts_cluster_dim(void);
uint64_t ts_cluster_index(void);
uint32_t ts_cluster_address(uint32_t address, uint32_t rank, uint64_t pc);
void* ts_cluster_pointer(const void* pointer, uint32_t rank, uint64_t pc);
void ts_cluster_arrive(uint64_t pc);
void ts_cluster_wait(int line, const char* file);

// Barriers in shared memory. A phase ends after as many arrivals as it was made for, and after all bytes expected.
void ts_mbarrier_init(void* barrier, uint32_t count, uint64_t pc);
uint64_t ts_mbarrier_arrive(void* barrier, uint32_t count, uint32_t bytes, int drops, uint64_t pc);
void ts_mbarrier_expect(void* barrier, int64_t bytes, uint64_t pc);
// `bytes` that the thread has stored in the barrier's block, and whose coming it did not wait for.
void ts_mbarrier_landed(void* barrier, int64_t bytes, uint64_t pc);
// Whether the phase of `state`, or of a parity, is over. A thread that `waits` goes on when it is, or when nothing else
// can run.
int ts_mbarrier_passed(void* barrier, uint64_t state, int parity, int waits, int line, const char* file, uint64_t pc);

// Copies by the copy engine: those to shared memory are under way until nothing else can run, those from it until their
// group is waited for. `blocks`: the ranks that get the bytes, 0: the one that `to` lies in.
enum ts_reduction { TS_REPLACE, TS_ADD, TS_MIN, TS_MAX, TS_AND, TS_OR, TS_XOR };
void ts_tensor_load(
    void* to, const void* map, const int32_t* at, int rank, void* barrier, uint32_t blocks, uint64_t pc);
void ts_tensor_store(
    const void* map, const int32_t* at, int rank, const void* from, int reduction, uint64_t pc);
void ts_bulk_load(void* to, const void* from, uint32_t bytes, void* barrier, uint32_t blocks, uint64_t pc);
void ts_bulk_store(void* to, const void* from, uint32_t bytes, int reduction, int type, uint64_t pc);
void ts_bulk_commit(void);
void ts_bulk_wait(int pending, int read);  // `read`: shared memory may be written again

// wgmma: d = a * b (+ d), 64 rows a warpgroup, done when its group is waited for and not before: until then the
// accumulators hold a NaN that says so.
struct ts_wgmma_form {
  int32_t n, k, a, b, d;  // columns; depth; ts_number of the operands and sums
  int32_t negate_a, negate_b, a_along_m, b_along_n, adds, saturates;
};
void ts_wgmma(
    const ts_wgmma_form* form, const uint32_t* a, uint64_t a_descriptor, uint64_t b_descriptor, uint32_t* const* d,
    uint32_t count, uint64_t pc);
void ts_wgmma_fence(void);
void ts_wgmma_commit(void);
void ts_wgmma_wait(int pending, int line, const char* file);

// One of the block's 16 barriers by number, for `threads` threads.
void ts_named_barrier(uint32_t number, uint32_t threads, int waits, int line, const char* file);

enum ts_barrier { TS_SYNC, TS_SYNC_COUNT, TS_SYNC_AND, TS_SYNC_OR };
int ts_syncthreads(int kind, int predicate, int line, const char* file);
void ts_syncgrid(int line, const char* file);

// A rendezvous of the lanes in `mask`. Each brings a pointer; the last to come calls `combine` with the pointers of all
// (null where a lane is not in the mask, or no such thread exists), and then all go on.
typedef void (*ts_combine)(void** lanes, uint32_t mask);
void ts_warp(uint32_t mask, ts_combine combine, void* mine, const char* what, int line, const char* file);
void ts_fail_lane(uint32_t mask, int reader, int lane, const char* what, int line, const char* file);
uint32_t ts_active_mask(int line, const char* file);

void ts_check(const void* address, uint64_t size, int access, uint64_t alignment, uint64_t pc);
// A plain access by code that no sanitizer instruments: aligned to its size; `pc` is any number that the report hands
// back.
void ts_read1(const void* address, uint64_t pc);
void ts_read2(const void* address, uint64_t pc);
void ts_read4(const void* address, uint64_t pc);
void ts_read8(const void* address, uint64_t pc);
void ts_read16(const void* address, uint64_t pc);
void ts_write1(void* address, uint64_t pc);
void ts_write2(void* address, uint64_t pc);
void ts_write4(void* address, uint64_t pc);
void ts_write8(void* address, uint64_t pc);
void ts_write16(void* address, uint64_t pc);
void ts_volatile(void* address, uint64_t size, int access, uint64_t pc);
// An index outside its axis. The report: region_kind etc. of `data`, size = extent, item = axis, address = index,
// text "index".
void ts_out_of_range(const void* data, int64_t index, uint64_t extent, int axis, uint64_t pc);
void ts_atomic_done(int changed, uint64_t pc);  // after an atomic: lets others run, now and then
void ts_fence(void);
void ts_proxy_fence(void);  // what the thread has stored to shared memory may be read by the copy engine
void ts_pause(void);  // lets others run
uint64_t ts_clock(void);
void ts_fault(const char* text, uint64_t pc);
int ts_running(void);
}
