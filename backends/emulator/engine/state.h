// What all files of the engine share: threads as fibers, their blocks, the launch, and the core that runs them.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "shadow.h"
#include "stages.h"
#include "switch.h"

namespace engine {

constexpr uint64_t ARENA = 512 << 10;  // bytes of shared memory a block may use here, red zones included
// Of a byte of shared memory; 0 is a red zone, IN_FLIGHT what an asynchronous copy has yet to fill.
constexpr uint8_t DECLARED = 1, WRITTEN = 3, IN_FLIGHT = 5;
constexpr unsigned SITES = 512;  // a power of two
constexpr int READ = 0, WRITE = 1, ATOMIC = 2;
constexpr int VOLATILE_READ = 3, VOLATILE_WRITE = 7;  // where races are looked for
constexpr int EXCHANGE = 3;  // to ts_check alone: the atomic that does not depend on what was
constexpr uint64_t RANK = 24;  // the bit of a shared address from which on the rank in the cluster stands

enum State : uint8_t {
  READY, AT_BARRIER, AT_WARP, AT_GRID, GATHERING, AT_NAMED, AT_CLUSTER, AT_MBARRIER, AT_PRODUCT, DONE
};

// A copy that its thread has started.
struct Copy {
  uint64_t to, from;
  uint32_t size, read, group;
  uint64_t pc;
};

struct Block;
struct Fiber;
struct Worker;
struct Launch;
struct Products;

// What the copy engine has yet to do: from global to shared memory, where bytes count at a barrier, or back.
struct Transfer {
  bool tensor = false;
  ts_tensor_map map;
  int32_t at[5];          // of the box
  char* global = nullptr;
  uint64_t bytes = 0;     // of shared memory
  Block* block = nullptr;
  uint64_t offset = 0;    // of the bytes within the block's shared memory
  uint64_t barrier = 0;   // likewise
  uint32_t blocks = 0;    // ranks of the cluster that get the bytes
  uint32_t group = 0;     // of stores
  int reduction = 0;      // of stores: ts_reduction, and the type of the elements
  int type = 0;
  bool read = false;      // of stores: `held` has what was in shared memory
  std::vector<char> held;
  uint32_t thread = 0, fences = 0;  // of the thread that began it, where races are looked for
};

struct Fiber {
  Context context;
  char* stack = nullptr;
  Block* block = nullptr;
  uint64_t index = 0;  // packed
  uint32_t number = 0;
  State state = READY;
  bool started = false;
  int line = 0;
  const char* file = "";
  const char* what = "";
  uint32_t mask = 0;
  ts_combine combine = nullptr;
  void* offered = nullptr;
  uint64_t polled = 0, polled_value = 0;  // the last volatile read
  uint32_t polls = 0;
  // Where races are looked for.
  uint32_t fences = 0, fenced_epoch = 0;  // and releases by a barrier
  bool fenced = false;
  uint32_t proxied = 0;  // releases by a barrier, and one, at its last fence before the copy engine
  std::vector<Copy> copies;  // oldest first
  uint32_t groups = 0;       // of copies that were closed
  std::unique_ptr<shadow::Knowledge> known;  // acquired since the block's last barrier
  struct Suspect {
    uint64_t address = 0;
    shadow::Record first, second;
    uint64_t size = 0;
  } suspect;  // a plain read that races with an atomic, unless a compare-and-swap of the same address follows
  uint64_t waits_at = 0;        // the mbarrier
  uint32_t cluster_arrivals = 0, cluster_waits = 0;
  std::vector<Transfer> stores;  // of the copy engine, oldest first
  uint32_t store_groups = 0;
  uint32_t products = 0, tiles = 0, product_groups = 0;  // wgmma's: begun, accumulators of them, closed groups
  uint32_t product_fences = 0;
};

struct Named {
  uint32_t arrived = 0, expected = 0;
};

struct Array {
  const ts_site* site;
  uint64_t offset, bytes;
};

// Of 32 threads, by lane.
struct Warp {
  uint32_t waiting = 0, gone = 0;  // who waits at a warp operation; who has ended, or never was
  bool all_at(uint32_t mask) const { return ((waiting | gone) & mask) == mask; }
};

// Blocks that run together and reach each other's shared memory.
struct Cluster {
  std::vector<Block*> blocks;  // by rank
  uint32_t place[3] = {};
  uint32_t phase = 0;           // times that its barrier was passed
  uint32_t running = 0, missing = 0;  // threads; those of them that have yet to come to the barrier
};

struct Block {
  uint64_t number = 0, index = 0;
  uint32_t place[3] = {};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  char* arena = nullptr;
  uint8_t* states = nullptr;
  uint64_t used = 0;
  std::vector<Array> arrays;
  std::shared_ptr<Cluster> cluster;
  uint32_t rank = 0;  // in its cluster
  std::shared_ptr<Products> products;  // wgmma's, by warp
  uint32_t arrived = 0, done = 0;
  Named named[16];
  int kind = 0, line = 0;
  uint32_t first = 0;  // the thread that came to the barrier first
  int count = 0, all = 1, any = 0;
  int result = 0;
  uint32_t released = 0;  // barriers passed
  bool fenced = false;    // by a thread, since the last barrier; where races are looked for
  std::vector<shadow::WarpClocks> clocks;
  uint32_t state = 0;     // another one whenever what is ordered changes for any of its threads
  std::unique_ptr<Stages> stages;  // likewise
  uint32_t moment = 0;             // barriers of any kind that were passed
  // As Races::released, by an address in its shared memory; and what the last phase of a barrier there released.
  std::unordered_map<uint64_t, shadow::Knowledge> at, passed;
  std::unique_ptr<shadow::Knowledge> known;
};

// What a launch that looks for races remembers.
struct Races {
  shadow::Pages pages;
  uint32_t states = 0;    // of blocks, so far
  uint32_t sample = 0;
  std::unordered_map<uint64_t, shadow::Knowledge> released;  // by the address of an atomic
  std::unordered_map<uint64_t, shadow::Record> last;         // the last atomic at an address
};

struct Range {
  uint64_t start = 0, bytes = 0;
};

// Where an instruction has been before, while every access takes the slow way.
struct Site {
  uint64_t pc = 0;
  Range range;
};

// One call of ts_launch, shared by the cores that run its blocks.
struct Launch {
  ts_entry entry;
  void** arguments;
  uint32_t grid[3], block[3], cluster[3];
  uint64_t packed_grid, packed_block, blocks, clusters;
  uint32_t threads;
  uint64_t shared_bytes;
  std::vector<ts_range> ranges;
  ts_options options;
  ts_report* report;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<int> active{0};
  std::atomic<uint64_t> atomics{0};
  std::mutex lock;
  Races* races = nullptr;
  shadow::Writers* writers = nullptr;

  uint64_t order(uint64_t position) const;
};

// Shared memory of a block that a thread reads before anybody has written it, and who has written it since.
struct Early {
  const Block* block = nullptr;
  const Fiber* reader = nullptr;
  uint64_t address = 0, size = 0, pc = 0;
  int access = 0;
  bool met = false;
  ts_place who = {};
};

// One core: its fibers run one at a time.
struct Worker {
  // Read by every access, so first.
  uint64_t shared_base = 0, shared_bytes = 0;
  uint8_t* shared_states = nullptr;
  uint64_t stack_low = 0, stack_bytes = 0;
  Range sites[SITES];

  Fiber* current = nullptr;
  Block* block = nullptr;
  Launch* launch = nullptr;
  Context main;
  Site watched_sites[SITES];
  bool watched = false;  // every access takes the slow way
  bool wants_block = false;
  bool copies = false;  // what is checked is the copy engine's
  bool lands = false;   // an asynchronous copy stores what it had promised
  std::vector<Fiber*> ring;
  uint64_t head = 0, tail = 0;
  std::vector<std::unique_ptr<Block>> resident, spare;
  std::vector<Transfer> transfers;  // to shared memory, oldest first
  uint64_t unread = 0;              // stores whose bytes still lie in shared memory
  uint32_t wakes = 0;               // that were in vain, of threads that wait at an mbarrier
  std::vector<char*> stacks;  // free ones
  std::vector<char*> all_stacks;
  uint64_t grid_arrived = 0;
  uint64_t idle = 0;      // polls in vain since memory changed or a thread came to its end
  uint64_t quiet = 0;     // and since threads met
  uint64_t patience = 0;
  uint64_t random = 0;
  uint64_t atomics = 0;
  std::vector<Fiber*> scratch;
  // Where races are looked for: a lane's store to what another lane of its warp stored to by the same instruction. One
  // of them wins, and no race it is if both store the same.
  struct Repeated {
    uint64_t address = 0, size = 0;
    unsigned char before[16];
    shadow::Record first, second;
  } repeated;
  Early early;

  bool empty() const { return head == tail; }
  void push(Fiber* fiber) { ring[tail++ & (ring.size() - 1)] = fiber; }
  void push_first(Fiber* fiber) { ring[--head & (ring.size() - 1)] = fiber; }
  Fiber* pop() { return ring[head++ & (ring.size() - 1)]; }
};

extern __attribute__((tls_model("initial-exec"))) __thread Worker* worker;  // of this OS thread, while it runs blocks

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace engine
