// Threads as fibers: each has a stack of its own, and one of them runs until it waits for others. See docs/emulator.md.
#include "engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shadow.h"
#include "switch.h"

namespace {

constexpr uint64_t ARENA = 512 << 10;   // bytes of shared memory a block may use here, red zones included
constexpr uint64_t RED_ZONE = 1024;     // between two shared arrays
constexpr uint64_t STATIC_LIMIT = 48 << 10, TOTAL_LIMIT = 227 << 10;  // CUDA's own, sm_90
constexpr uint8_t DECLARED = 1, WRITTEN = 3;  // of a byte of shared memory; 0 is a red zone
constexpr unsigned SITES = 512;         // a power of two
constexpr int READ = 0, WRITE = 1, ATOMIC = 2;

enum State : uint8_t { READY, AT_BARRIER, AT_WARP, AT_GRID, GATHERING, DONE };

struct Block;
struct Worker;
struct Launch;

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
  uint32_t fences = 0, fenced_epoch = 0;
  std::unique_ptr<shadow::Knowledge> known;  // acquired since the block's last barrier
  struct Suspect {
    uint64_t address = 0;
    shadow::Record first, second;
    uint64_t size = 0;
  } suspect;  // a plain read that races with an atomic, unless a compare-and-swap of the same address follows
};

struct Array {
  const ts_site* site;
  uint64_t offset, bytes;
};

struct Block {
  uint64_t number = 0, index = 0;
  uint32_t place[3] = {};
  std::vector<Fiber> fibers;
  char* arena = nullptr;
  uint8_t* states = nullptr;
  uint64_t used = 0;
  std::vector<Array> arrays;
  uint32_t arrived = 0, done = 0;
  int kind = 0, line = 0;
  const char* file = "";
  uint32_t first = 0;  // the thread that came to the barrier first
  int count = 0, all = 1, any = 0;
  int result = 0;
  uint32_t released = 0;  // barriers passed
  std::vector<shadow::WarpClocks> clocks;
  std::unique_ptr<shadow::Knowledge> known;
};

// What a launch that looks for races remembers.
struct Races {
  shadow::Pages pages;
  std::unordered_map<uint64_t, shadow::Knowledge> released;  // by the address of an atomic
};

struct Range {
  uint64_t start = 0, bytes = 0;
};

std::mutex pool_lock;
struct Pool {
  std::vector<char*> stacks, arenas;
  uint64_t stack_bytes = 0;
};
Pool pool;

uint64_t page() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Launch {
  ts_entry entry;
  void** arguments;
  uint32_t grid[3], block[3];
  uint64_t packed_grid, packed_block, blocks;
  uint32_t threads;
  uint64_t shared_bytes;
  std::vector<ts_range> ranges;
  ts_options options;
  ts_report* report;
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<int> active{0};
  std::mutex lock;
  Races* races = nullptr;
  shadow::Writers* writers = nullptr;

  uint64_t order(uint64_t position) const;
};

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
  bool watched = false;  // every access takes the slow way
  bool wants_block = false;
  std::vector<Fiber*> ring;
  uint64_t head = 0, tail = 0;
  std::vector<std::unique_ptr<Block>> resident, spare;
  std::vector<char*> stacks;  // free ones
  std::vector<char*> all_stacks;
  uint64_t grid_arrived = 0;
  uint64_t idle = 0;      // polls in vain since memory changed or a thread came to its end
  uint64_t quiet = 0;     // and since threads met
  uint64_t patience = 0;
  uint64_t random = 0;
  uint32_t atomics = 0;
  uint64_t clock = 0;
  std::vector<Fiber*> scratch;

  bool empty() const { return head == tail; }
  void push(Fiber* fiber) { ring[tail++ & (ring.size() - 1)] = fiber; }
  Fiber* pop() { return ring[head++ & (ring.size() - 1)]; }
};

__attribute__((tls_model("initial-exec"))) thread_local Worker* worker = nullptr;

// A bijection of the positions of a grid, so that blocks are taken in another order without a table.
uint64_t Launch::order(uint64_t position) const {
  if (options.order == 1) return blocks - 1 - position;
  if (options.order != 2 || blocks < 2) return position;
  int bits = 2;
  while ((uint64_t(1) << bits) < blocks) bits += 2;
  const int half = bits / 2;
  const uint64_t low = (uint64_t(1) << half) - 1;
  do {  // a Feistel network on an even number of bits, walked until it falls within the grid
    uint64_t left = position >> half, right = position & low;
    for (int round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(right ^ (options.seed * 4 + round) * 0x10001) & low);
      left = right;
      right = next;
    }
    position = left << half | right;
  } while (position >= blocks);
  return position;
}

void place(ts_place& at, const Fiber* fiber, uint64_t pc = 0, int access = READ) {
  at.pc = pc;
  at.access = access;
  if (!fiber) return;
  std::memcpy(at.block, fiber->block->place, sizeof at.block);
  at.thread[0] = static_cast<uint32_t>(fiber->index);
  at.thread[1] = fiber->index >> 32 & 0xffff;
  at.thread[2] = fiber->index >> 48;
}

void waits(ts_place& at, const Fiber* fiber) {
  place(at, fiber);
  at.line = fiber->line;
  std::strncpy(at.file, fiber->file, sizeof at.file - 1);
  at.state = fiber->state == DONE ? 0 : fiber->state == AT_BARRIER ? 1 : fiber->state == AT_WARP ? 2 : 3;
}

void stop() {
  Worker* w = worker;
  if (w->current) {
    change(w->current->context, w->main);
    __builtin_unreachable();
  }
}

// The first finding of a launch is kept; the thread that makes it never goes on.
template <class Fill>
void fail(ts_kind kind, Fill fill) {
  Launch* launch = worker->launch;
  {
    std::lock_guard<std::mutex> hold(launch->lock);
    if (!launch->failed) {
      launch->report->kind = kind;
      fill(*launch->report);
      launch->failed = true;
    }
  }
  stop();
}

void fault(const char* text, uint64_t pc) {
  fail(TS_FAULT, [&](ts_report& report) {
    place(report.here, worker->current, pc);
    std::strncpy(report.text, text, sizeof report.text - 1);
  });
}

char* take_stack(Worker* w) {
  if (!w->stacks.empty()) {
    char* stack = w->stacks.back();
    w->stacks.pop_back();
    return stack;
  }
  char* stack = nullptr;
  {
    std::lock_guard<std::mutex> hold(pool_lock);
    if (!pool.stacks.empty()) {
      stack = pool.stacks.back();
      pool.stacks.pop_back();
    }
  }
  if (!stack) {
    const uint64_t bytes = w->launch->options.stack_bytes + page();
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    mprotect(memory, page(), PROT_NONE);
    stack = static_cast<char*>(memory) + page();
  }
  w->all_stacks.push_back(stack);
  return stack;
}

void enter(Worker* w, Fiber* fiber) {
  w->current = fiber;
  w->block = fiber->block;
  w->stack_low = reinterpret_cast<uint64_t>(fiber->stack);
  w->shared_base = reinterpret_cast<uint64_t>(fiber->block->arena);
  w->shared_states = fiber->block->states;
}

void fiber_main();

bool equip(Worker* w, Fiber* fiber, char* stack) {
  if (!stack) return false;
  fiber->stack = stack;
  // Stacks start at different places within a page, else their tops would share few lines of the cache.
  const uint64_t colour = fiber->number % 32 * 128;
  prepare(fiber->context, stack, w->launch->options.stack_bytes - colour, fiber_main);
  fiber->started = true;
  return true;
}

// Where the thread that runs goes on to another, which runs in its place until something comes back to it.
void leave(Worker* w, Fiber* self) {
  if (w->empty() || w->launch->failed.load(std::memory_order_relaxed) || w->wants_block) {
    change(self->context, w->main);
    return;
  }
  Fiber* fiber = w->pop();
  if (fiber == self) return;
  if (!fiber->started && !equip(w, fiber, take_stack(w))) fault("no memory for the stack of another thread", 0);
  enter(w, fiber);
  change(self->context, fiber->context);
}

void accuse(Worker* w, const Fiber::Suspect& suspect);

void fiber_main() {
  for (;;) {
    Worker* w = worker;
    Fiber* self = w->current;
    w->launch->entry(w->launch->arguments);
    if (self->suspect.address) accuse(w, self->suspect);
    self->state = DONE;
    ++self->block->done;
    w->idle = w->quiet = 0;
    Fiber* fiber = nullptr;
    if (!w->empty() && !w->launch->failed.load(std::memory_order_relaxed) && !w->wants_block) fiber = w->pop();
    if (fiber && !fiber->started) {  // the next thread runs on this stack
      fiber->stack = self->stack;
      fiber->started = true;
      self->stack = nullptr;
      std::swap(fiber->context, self->context);
      enter(w, fiber);
      continue;
    }
    w->stacks.push_back(self->stack);  // still in use until the change below, which nothing interrupts
    self->stack = nullptr;
    if (!fiber) {
      change(self->context, w->main);
    } else {
      enter(w, fiber);
      change(self->context, fiber->context);
    }
    __builtin_unreachable();
  }
}

void arrange(Worker* w, std::vector<Fiber*>& fibers) {
  const int order = w->launch->options.order;
  if (order == 1) std::reverse(fibers.begin(), fibers.end());
  if (order == 2) {
    for (size_t i = fibers.size(); i > 1; --i) {
      w->random = mix(w->random);
      std::swap(fibers[i - 1], fibers[w->random % i]);
    }
  }
  w->quiet = 0;
  for (Fiber* fiber : fibers) {
    fiber->state = READY;
    w->push(fiber);
  }
}

void retire(Worker* w, std::unique_ptr<Block> block) {
  for (const Array& array : block->arrays) {
    std::memset(block->states + array.offset, 0, array.bytes);
    if (w->launch->races) w->launch->races->pages.forget(reinterpret_cast<uint64_t>(block->arena) + array.offset, array.bytes);
  }
  block->arrays.clear();
  block->used = 0;
  w->spare.push_back(std::move(block));
}

uint64_t allocate(Block* block, const ts_site* site, uint64_t bytes, uint64_t align) {
  const uint64_t offset = (block->used + RED_ZONE + align - 1) / align * align;
  if (offset + bytes + RED_ZONE > ARENA) return 0;
  block->used = offset + bytes;
  block->arrays.push_back({site, offset, bytes});
  std::memset(block->arena + offset, 0xff, bytes);
  std::memset(block->states + offset, DECLARED, bytes);
  return offset;
}

bool admit(Worker* w) {
  Launch* launch = w->launch;
  const uint64_t position = launch->next.fetch_add(1);
  if (position >= launch->blocks) return false;
  const uint64_t number = launch->order(position);
  std::unique_ptr<Block> block;
  if (!w->spare.empty()) {
    block = std::move(w->spare.back());
    w->spare.pop_back();
  } else {
    block = std::make_unique<Block>();
    block->fibers.resize(launch->threads);
    {
      std::lock_guard<std::mutex> hold(pool_lock);
      if (!pool.arenas.empty()) {
        block->arena = pool.arenas.back();
        pool.arenas.pop_back();
      }
    }
    if (!block->arena) {
      void* memory = mmap(nullptr, 2 * ARENA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) {
        fault("no memory for the shared memory of another block", 0);
        return false;
      }
      block->arena = static_cast<char*>(memory);
    }
    block->states = reinterpret_cast<uint8_t*>(block->arena + ARENA);
  }
  block->number = number;
  block->place[0] = static_cast<uint32_t>(number % launch->grid[0]);
  block->place[1] = static_cast<uint32_t>(number / launch->grid[0] % launch->grid[1]);
  block->place[2] = static_cast<uint32_t>(number / launch->grid[0] / launch->grid[1]);
  block->index = block->place[0] | uint64_t(block->place[1]) << 32 | uint64_t(block->place[2]) << 48;
  block->arrived = block->done = 0;
  block->released = 0;
  block->count = 0, block->all = 1, block->any = 0;
  allocate(block.get(), nullptr, launch->shared_bytes, 1024);
  block->known.reset();
  if (launch->races) {
    block->clocks.resize((launch->threads + 31) / 32);
    for (shadow::WarpClocks& clocks : block->clocks) clocks.reset();
  }

  const uint64_t needed = (w->resident.size() + 1) * launch->threads + 1;
  if (w->ring.size() < needed) {
    uint64_t size = 64;
    while (size < needed) size *= 2;
    std::vector<Fiber*> ring(size);
    uint64_t count = 0;
    while (!w->empty()) ring[count++] = w->pop();
    w->ring.swap(ring);
    w->head = 0;
    w->tail = count;
  }
  w->random = mix(launch->options.seed ^ mix(number));
  w->scratch.clear();
  uint32_t x = 0, y = 0, z = 0;
  for (uint32_t i = 0; i < launch->threads; ++i) {
    Fiber& fiber = block->fibers[i];
    fiber.block = block.get();
    fiber.number = i;
    fiber.index = x | uint64_t(y) << 32 | uint64_t(z) << 48;
    fiber.started = false;
    fiber.polled = 0;
    fiber.fences = fiber.fenced_epoch = 0;
    fiber.known.reset();
    fiber.suspect.address = 0;
    if (++x == launch->block[0]) {
      x = 0;
      if (++y == launch->block[1]) y = 0, ++z;
    }
    w->scratch.push_back(&fiber);
  }
  arrange(w, w->scratch);
  w->resident.push_back(std::move(block));
  return true;
}

// Nothing can run, and some threads have not come to their end: says why.
void stuck(Worker* w) {
  w->current = nullptr;
  for (auto& block : w->resident) {
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != AT_WARP) continue;
      const uint32_t base = fiber.number & ~31u;
      for (uint32_t lane = 0; lane < 32 && base + lane < block->fibers.size(); ++lane) {
        Fiber& other = block->fibers[base + lane];
        if (!(fiber.mask >> lane & 1) || &other == &fiber) continue;
        if (other.state == AT_WARP && other.mask == fiber.mask && other.combine == fiber.combine) continue;
        fail(TS_INACTIVE_LANES, [&](ts_report& report) {
          waits(report.here, &fiber);
          waits(report.there, &other);
          report.lane = static_cast<int32_t>(lane);
          report.mask = fiber.mask;
          std::strncpy(report.text, fiber.what, sizeof report.text - 1);
          if (other.state == AT_WARP) std::strncpy(report.name, other.what, sizeof report.name - 1);
        });
        return;
      }
    }
  }
  for (auto& block : w->resident) {
    if (!block->arrived) continue;
    Fiber& fiber = block->fibers[block->first];
    for (Fiber& other : block->fibers) {
      if (other.state == AT_BARRIER) continue;
      fail(TS_DIVERGENT_BARRIER, [&](ts_report& report) {
        waits(report.here, &fiber);
        waits(report.there, &other);
      });
      return;
    }
  }
  for (auto& block : w->resident) {
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != AT_GRID) continue;
      for (auto& other_block : w->resident) {
        for (Fiber& other : other_block->fibers) {
          if (other.state == AT_GRID) continue;
          fail(TS_DEADLOCK, [&](ts_report& report) {
            waits(report.here, &fiber);
            waits(report.there, &other);
          });
          return;
        }
      }
    }
  }
  for (auto& block : w->resident) {  // a block that has come to its end is resident no more
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != AT_GRID) continue;
      uint64_t gone = 0;
      while (std::any_of(w->resident.begin(), w->resident.end(), [&](const auto& other) { return other->number == gone; })) ++gone;
      fail(TS_DEADLOCK, [&](ts_report& report) {
        waits(report.here, &fiber);
        report.there.block[0] = static_cast<uint32_t>(gone % w->launch->grid[0]);
        report.there.block[1] = static_cast<uint32_t>(gone / w->launch->grid[0] % w->launch->grid[1]);
        report.there.block[2] = static_cast<uint32_t>(gone / w->launch->grid[0] / w->launch->grid[1]);
        report.there.state = 0;
      });
      return;
    }
  }
  fail(TS_FAULT, [&](ts_report& report) { std::strncpy(report.text, "nothing can run", sizeof report.text - 1); });
}

// Nothing else can run: the lanes of a warp that came to one place together are active there.
bool gather(Worker* w) {
  w->scratch.clear();
  for (auto& block : w->resident) {
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != GATHERING) continue;
      const uint32_t warp = fiber.number & ~31u;
      fiber.mask = 0;
      for (uint32_t lane = 0; lane < 32 && warp + lane < block->fibers.size(); ++lane) {
        const Fiber& other = block->fibers[warp + lane];
        if (other.state == GATHERING && other.line == fiber.line) fiber.mask |= 1u << lane;
      }
      w->scratch.push_back(&fiber);
    }
  }
  if (w->scratch.empty()) return false;
  arrange(w, w->scratch);
  return true;
}

void run(Launch* launch) {
  auto owned = std::make_unique<Worker>();
  Worker* w = owned.get();
  Worker* before = worker;
  w->launch = launch;
  w->stack_bytes = launch->options.stack_bytes;
  w->watched = launch->races || launch->writers;
  w->shared_bytes = w->watched ? 0 : ARENA;
  worker = w;
  if (launch->options.cooperative)
    while (!launch->failed && admit(w)) {}
  while (!launch->failed) {
    if (w->wants_block) {
      w->wants_block = false;
      admit(w);
    }
    if (w->empty()) {
      auto unfinished = std::partition(w->resident.begin(), w->resident.end(), [&](const std::unique_ptr<Block>& block) {
        return block->done < launch->threads;
      });
      for (auto done = unfinished; done != w->resident.end(); ++done) retire(w, std::move(*done));
      w->resident.erase(unfinished, w->resident.end());
      if (!w->resident.empty()) {
        if (!gather(w)) {
          stuck(w);
          break;
        }
      } else if (!admit(w)) {
        break;
      }
    }
    Fiber* fiber = w->pop();
    if (!fiber->started && !equip(w, fiber, take_stack(w))) {
      w->current = nullptr;
      fault("no memory for the stack of a thread", 0);
      break;
    }
    enter(w, fiber);
    change(w->main, fiber->context);
    w->current = nullptr;
  }
  for (auto& block : w->resident) retire(w, std::move(block));
  {
    std::lock_guard<std::mutex> hold(pool_lock);
    for (auto& block : w->spare) {
      for (Fiber& fiber : block->fibers) release(fiber.context);
      pool.arenas.push_back(block->arena);
    }
    pool.stacks.insert(pool.stacks.end(), w->all_stacks.begin(), w->all_stacks.end());
  }
  release(w->main);
  worker = before;
  --launch->active;
}

uint64_t distance(uint64_t address, uint64_t start, uint64_t bytes) {
  if (address < start) return start - address;
  return address >= start + bytes ? address - (start + bytes) + 1 : 0;
}

void describe_nearest(Worker* w, ts_report& report, uint64_t address) {
  uint64_t best = ~uint64_t(0);
  auto nearer = [&](int kind, int index, uint64_t start, uint64_t bytes, uint64_t item) {
    const uint64_t far = distance(address, start, bytes);
    if (far >= best) return false;
    best = far;
    report.region_kind = kind;
    report.region_index = index;
    report.offset = static_cast<int64_t>(address - start);
    report.extent = bytes;
    report.item = item;
    return true;
  };
  for (const ts_range& range : w->launch->ranges) nearer(range.kind, range.index, range.start, range.bytes, range.item);
  for (const Array& array : w->block->arrays) {
    if (array.bytes == 0) continue;
    const uint64_t start = reinterpret_cast<uint64_t>(w->block->arena) + array.offset;
    if (nearer(TS_SHARED, 0, start, array.bytes, array.site ? array.site->item : 1) && array.site) {
      std::strncpy(report.name, array.site->name, sizeof report.name - 1);
      std::memcpy(report.dims, array.site->dims, sizeof report.dims);
    }
  }
  if (best > uint64_t(1) << 32) report.region_kind = TS_NO_REGION;
}

void slow(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc);

void refuse(Worker* w, ts_kind kind, uint64_t address, uint64_t size, int access, uint64_t pc, const char* text = "") {
  fail(kind, [&](ts_report& report) {
    place(report.here, w->current, pc, access);
    report.address = address;
    report.size = size;
    describe_nearest(w, report, address);
    std::strncpy(report.text, text, sizeof report.text - 1);
  });
}

shadow::Record record_of(Worker* w, int access, uint64_t pc) {
  const Fiber* self = w->current;
  const Block* block = w->block;
  shadow::Record record;
  record.thread = static_cast<uint32_t>(block->number << 10 | self->number) + 1;
  record.epoch = (block->released & shadow::EPOCH) | static_cast<uint32_t>(access) << 30;
  record.warp_clock = block->clocks[self->number / 32].of[self->number % 32][self->number % 32];
  record.clock = static_cast<uint16_t>(self->fences);
  record.pc = static_cast<uint32_t>(pc - w->launch->options.module);
  return record;
}

// Whether what `record` did is over for the thread that runs.
bool ordered(Worker* w, const shadow::Record& record, uint32_t me) {
  if (record.thread == me) return true;
  const uint32_t before = record.thread - 1, now = me - 1;
  const Block* block = w->block;
  if (before >> 10 == now >> 10) {
    if ((record.epoch & shadow::EPOCH) < block->released) return true;
    if ((before & 1023) / 32 == (now & 1023) / 32) {
      const uint16_t clock = block->clocks[(now & 1023) / 32].of[now & 31][before & 31];
      if (clock >= record.warp_clock) return true;
    }
  }
  const Fiber* self = w->current;
  return (block->known && block->known->covers(record)) || (self->known && self->known->covers(record));
}

void unpack_place(Worker* w, ts_place& at, const shadow::Record& record) {
  const Launch* launch = w->launch;
  const uint64_t block = (record.thread - 1) >> 10, thread = (record.thread - 1) & 1023;
  at.block[0] = static_cast<uint32_t>(block % launch->grid[0]);
  at.block[1] = static_cast<uint32_t>(block / launch->grid[0] % launch->grid[1]);
  at.block[2] = static_cast<uint32_t>(block / launch->grid[0] / launch->grid[1]);
  at.thread[0] = static_cast<uint32_t>(thread % launch->block[0]);
  at.thread[1] = static_cast<uint32_t>(thread / launch->block[0] % launch->block[1]);
  at.thread[2] = static_cast<uint32_t>(thread / launch->block[0] / launch->block[1]);
  at.pc = launch->options.module + record.pc;
  at.access = static_cast<int32_t>(record.epoch >> 30);
}

void accuse(Worker* w, const Fiber::Suspect& suspect) {
  fail(TS_RACE, [&](ts_report& report) {
    unpack_place(w, report.there, suspect.first);
    unpack_place(w, report.here, suspect.second);
    report.address = suspect.address;
    report.size = suspect.size;
    describe_nearest(w, report, suspect.address);
  });
}

// Whether `later` shows every conflict that `earlier`, which comes before it, could show.
bool replaces(uint32_t later, uint32_t earlier) { return later == WRITE || later == earlier; }

void look_for_races(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  const shadow::Record mine = record_of(w, access, pc);
  const int shift = (address | size) & 1 ? 0 : (address | size) & 2 ? 1 : 2;
  const uint64_t start = address, end = address + size;
  while (address < end) {
    shadow::Page& page = w->launch->races->pages.at(address, shift);
    shadow::Cell& cell = page.cells[(address & 4095) >> page.shift];
    int slot = -1;
    for (int i = 0; i < 4; ++i) {
      shadow::Record& other = cell.records[i];
      if (!other.thread) {
        if (slot < 0) slot = i;
        continue;
      }
      const int kind = static_cast<int>(other.epoch >> 30);
      const bool before = ordered(w, other, mine.thread);
      if (!before && (kind != READ || access != READ) && !(kind == ATOMIC && access == ATOMIC)) {
        Fiber::Suspect suspect;
        suspect.address = start;
        suspect.size = size;
        suspect.first = other;
        suspect.second = mine;
        if (kind == ATOMIC && access == READ) {
          if (w->current->suspect.address && w->current->suspect.address != start) return accuse(w, w->current->suspect);
          w->current->suspect = suspect;
          continue;
        }
        return accuse(w, suspect);
      }
      // A thread's own read before its atomic: the usual start of a loop of compare-and-swaps.
      const bool guess = kind == READ && access == ATOMIC && other.thread == mine.thread;
      if (guess || (before && replaces(static_cast<uint32_t>(access), static_cast<uint32_t>(kind)))) {
        if (slot >= 0) other.thread = 0;
        else slot = i;
      }
    }
    if (slot < 0) {
      // All are needed: rather a read than a write, and one of a warp or block that another record stands for too.
      int best = -1;
      for (int i = 0; i < 4; ++i) {
        const shadow::Record& other = cell.records[i];
        int worth = other.epoch >> 30 == READ ? 8 : 0;
        if ((other.thread - 1) >> 10 == (mine.thread - 1) >> 10) worth += 2;
        if ((other.thread - 1) >> 5 == (mine.thread - 1) >> 5) worth += 1;
        if (worth > best) {
          best = worth;
          slot = i;
        }
      }
    }
    cell.records[slot] = mine;
    address += uint64_t(1) << page.shift;
  }
}

// An atomic, or an access to a volatile: takes what others released at this address, and releases what was fenced.
void synchronise(Worker* w, uint64_t address, bool acquires, bool releases) {
  Races* races = w->launch->races;
  Fiber* self = w->current;
  Block* block = w->block;
  if (self->suspect.address == address) self->suspect.address = 0;
  if (acquires) {
    const auto found = races->released.find(address);
    if (found != races->released.end()) {
      if (!self->known) self->known = std::make_unique<shadow::Knowledge>();
      self->known->join(found->second);
    }
  }
  if (releases && self->fences) {
    shadow::Knowledge& out = races->released[address];
    shadow::Knowledge::raise(out.threads, static_cast<uint32_t>(block->number << 10 | self->number) + 1, self->fences);
    if (self->fenced_epoch) shadow::Knowledge::raise(out.blocks, static_cast<uint32_t>(block->number), self->fenced_epoch);
    if (block->known) out.join(*block->known);
    if (self->known) out.join(*self->known);
  }
}

void note(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc, bool global) {
  if (w->launch->races) look_for_races(w, address, size, access, pc);
  if (w->launch->writers && access != READ && global) {
    const uint64_t base = w->launch->options.module;
    w->launch->writers->note(
        address, size,
        {w->launch->writers->launches, static_cast<uint32_t>(w->block->number), w->current->number, static_cast<uint32_t>(pc - base)});
  }
}

__attribute__((noinline)) void slow(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  if (!w || !w->current) return;
  const uint64_t offset = address - reinterpret_cast<uint64_t>(w->block->arena);
  if (offset < ARENA) {
    uint8_t* states = w->shared_states + offset;
    const uint64_t end = std::min(offset + size, ARENA);
    bool missing = offset + size > ARENA, unwritten = false;
    for (uint64_t i = 0; i < end - offset; ++i) {
      missing |= states[i] == 0;
      unwritten |= states[i] == DECLARED;
    }
    if (missing) return refuse(w, TS_OUT_OF_BOUNDS, address, size, access, pc);
    if (unwritten && access != WRITE) return refuse(w, TS_UNINITIALISED_SHARED, address, size, access, pc);
    if (unwritten) std::memset(states, WRITTEN, size);
    if (w->watched) note(w, address, size, access, pc, false);
    return;
  }
  if (address - w->stack_low <= w->stack_bytes - size) return;
  for (const ts_range& range : w->launch->ranges) {
    if (address - range.start < range.bytes && address + size - range.start <= range.bytes) {
      if (access != READ && !range.writable) break;
      if (w->watched) note(w, address, size, access, pc, true);
      else if (range.bytes >= 16) w->sites[(pc ^ pc >> 9) & (SITES - 1)] = {range.start, range.bytes};
      return;
    }
  }
  const ts_options& options = w->launch->options;
  if (access == READ && address >= options.readable_low && address + size <= options.readable_high) return;
  if (!options.checks) return;
  refuse(w, TS_OUT_OF_BOUNDS, address, size, access, pc);
}

__attribute__((noinline, cold)) void misaligned(Worker* w, uint64_t address, uint64_t size, int access, uint64_t alignment, uint64_t pc) {
  if (!w || !w->current) return;
  fail(TS_MISALIGNED, [&](ts_report& report) {
    place(report.here, w->current, pc, access);
    report.address = address;
    report.size = size;
    report.mask = static_cast<uint32_t>(alignment);
    describe_nearest(w, report, address);
  });
}

// `aligned`: the compiler took the address for a multiple of the size, or of 8. GCC has asked already, whatever the type;
// clang does not ask where a whole struct is copied.
#if defined(__clang__)
constexpr bool ASKED = false;
#else
constexpr bool ASKED = true;
#endif
template <class Word, bool aligned = false>
inline __attribute__((always_inline)) void check(uint64_t address, int access, uint64_t pc) {
  Worker* w = worker;
  constexpr uint64_t alignment = sizeof(Word) < 8 ? sizeof(Word) : 8;
  if (aligned && !ASKED && __builtin_expect(address & (alignment - 1), 0))
    return misaligned(w, address, sizeof(Word), access, alignment, pc);
  if (__builtin_expect(w != nullptr, 1)) {
    const uint64_t offset = address - w->shared_base;
    if (offset < w->shared_bytes) {
      Word state, all;
      std::memset(&all, WRITTEN, sizeof all);
      std::memcpy(&state, w->shared_states + offset, sizeof state);
      if (__builtin_expect(state == all, 1)) return;
    } else {
      const Range& known = w->sites[(pc ^ pc >> 9) & (SITES - 1)];
      if (__builtin_expect(address - known.start <= known.bytes - sizeof(Word) && known.bytes, 1)) return;
    }
  }
  slow(w, address, sizeof(Word), access, pc);
}

inline uint64_t here(void* address) { return reinterpret_cast<uint64_t>(address); }

void yield_now(Worker* w) {
  Fiber* self = w->current;
  w->push(self);
  leave(w, self);
}

// A thread looked at memory that has not changed: one turn of a loop that waits.
void idle(Worker* w, uint64_t pc) {
  Launch* launch = w->launch;
  Fiber* self = w->current;
  ++w->idle;
  if (++w->quiet > launch->options.step_limit || w->idle > 50 * launch->options.step_limit) {
    if (launch->active > 1 && w->patience < 5000) {  // perhaps another block, on another core, has yet to write it
      ++w->patience;
      w->idle /= 2;
      w->quiet /= 2;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      fail(TS_DEADLOCK, [&](ts_report& report) {
        place(report.here, self, pc);
        std::strncpy(report.text, "spins", sizeof report.text - 1);
      });
    }
  }
  if (++self->polls % 16 == 0) {
    if (!launch->options.cooperative && w->idle % 4096 < 16 && w->idle > 4096 && launch->next < launch->blocks &&
        w->resident.size() < 64)
      w->wants_block = true;  // perhaps it waits for a block that has not begun
    yield_now(w);
  }
}

struct Vector16 {
  uint64_t low, high;
  bool operator==(const Vector16& other) const { return low == other.low && high == other.high; }
};

}  // namespace

extern "C" {

#define TS_EXPORT __attribute__((visibility("default")))
#define TS_RETURN_ADDRESS here(__builtin_extract_return_addr(__builtin_return_address(0)))

TS_EXPORT uint64_t ts_thread_index() { return worker->current->index; }
TS_EXPORT uint64_t ts_block_index() { return worker->block->index; }
TS_EXPORT uint64_t ts_block_dim() { return worker->launch->packed_block; }
TS_EXPORT uint64_t ts_grid_dim() { return worker->launch->packed_grid; }
TS_EXPORT uint32_t ts_lane() { return worker->current->number & 31; }
TS_EXPORT void* ts_dynamic_shared() { return worker->block->arena + worker->block->arrays[0].offset; }
TS_EXPORT uint64_t ts_dynamic_shared_bytes() { return worker->launch->shared_bytes; }
TS_EXPORT int ts_running() { return worker && worker->current; }

TS_EXPORT void* ts_shared(ts_site* site) {
  Block* block = worker->block;
  uint64_t total = site->bytes;
  for (const Array& array : block->arrays) {
    if (array.site == site) return block->arena + array.offset;
    if (array.site) total += array.bytes;
  }
  if (total > STATIC_LIMIT) {
    fault("more than 48 KB of static shared memory: use dynamic shared memory (extern __shared__)", TS_RETURN_ADDRESS);
  }
  if (total + worker->launch->shared_bytes > TOTAL_LIMIT)
    fault("more than 227 KB of shared memory in one block", TS_RETURN_ADDRESS);
  const uint64_t offset = allocate(block, site, site->bytes, std::max<uint64_t>(site->align, 128));
  if (!offset) fault("too many shared arrays", TS_RETURN_ADDRESS);
  return block->arena + offset;
}

TS_EXPORT int ts_syncthreads(int kind, int predicate, int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  Block* block = self->block;
  if (self->suspect.address) accuse(w, self->suspect);
  self->line = line;
  self->file = file;
  self->state = AT_BARRIER;
  if (block->arrived == 0) {
    block->first = self->number;
    block->line = line;
    block->kind = kind;
  } else if (block->line != line || block->kind != kind) {
    fail(TS_DIVERGENT_BARRIER, [&](ts_report& report) {
      waits(report.here, &block->fibers[block->first]);
      waits(report.there, self);
    });
  }
  block->count += predicate != 0;
  block->all &= predicate != 0;
  block->any |= predicate != 0;
  if (++block->arrived == w->launch->threads) {
    block->result = kind == TS_SYNC_COUNT ? block->count : kind == TS_SYNC_AND ? block->all : block->any;
    block->arrived = 0;
    block->count = 0, block->all = 1, block->any = 0;
    ++block->released;
    if (w->launch->races) {
      for (shadow::WarpClocks& clocks : block->clocks) clocks.reset();
      for (Fiber& fiber : block->fibers) {
        if (!fiber.known) continue;
        if (!block->known) block->known = std::make_unique<shadow::Knowledge>();
        block->known->join(*fiber.known);
        fiber.known.reset();
      }
    }
    w->scratch.clear();
    for (Fiber& fiber : block->fibers) w->scratch.push_back(&fiber);
    arrange(w, w->scratch);
  }
  leave(w, self);
  return block->result;
}

TS_EXPORT void ts_syncgrid(int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  if (!w->launch->options.cooperative)
    fault("the grid's barrier in a launch that is not cooperative: launch with cooperative=True", TS_RETURN_ADDRESS);
  self->line = line;
  self->file = file;
  self->state = AT_GRID;
  if (++w->grid_arrived == w->launch->blocks * w->launch->threads) {
    w->grid_arrived = 0;
    if (w->launch->races) w->launch->races->pages.clear();  // everything before comes before everything after
    w->scratch.clear();
    for (auto& block : w->resident)
      for (Fiber& fiber : block->fibers) w->scratch.push_back(&fiber);
    arrange(w, w->scratch);
  }
  leave(w, self);
}

TS_EXPORT void ts_warp(uint32_t mask, ts_combine combine, void* mine, const char* what, int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  Block* block = self->block;
  const uint32_t lane = self->number & 31, base = self->number & ~31u;
  self->line = line;
  self->file = file;
  self->what = what;
  self->mask = mask;
  self->combine = combine;
  self->offered = mine;
  self->state = AT_WARP;
  if (!(mask >> lane & 1)) {
    fail(TS_INACTIVE_LANES, [&](ts_report& report) {
      waits(report.here, self);
      waits(report.there, self);
      report.lane = static_cast<int32_t>(lane);
      report.mask = mask;
      std::strncpy(report.text, what, sizeof report.text - 1);
    });
  }
  void* lanes[32] = {};
  const uint32_t size = static_cast<uint32_t>(block->fibers.size());
  bool complete = true;
  w->scratch.clear();
  for (uint32_t bits = mask; bits; bits &= bits - 1) {
    const uint32_t other = static_cast<uint32_t>(__builtin_ctz(bits));
    if (base + other >= size) break;  // a block whose last warp is not full: those threads do not exist
    Fiber& fiber = block->fibers[base + other];
    if (fiber.state != AT_WARP || fiber.mask != mask || fiber.combine != combine) {
      complete = false;
      break;
    }
    lanes[other] = fiber.offered;
    w->scratch.push_back(&fiber);
  }
  if (complete) {
    if (combine) combine(lanes, mask);
    if (w->launch->races) block->clocks[base / 32].meet(mask);
    arrange(w, w->scratch);
  }
  leave(w, self);
}

TS_EXPORT void ts_fail_lane(uint32_t mask, int lane, const char* what, int line, const char* file) {
  Worker* w = worker;
  fail(TS_INACTIVE_LANES, [&](ts_report& report) {
    waits(report.here, w->current);
    waits(report.there, w->current);
    report.there.state = 4;
    report.lane = lane;
    report.mask = mask;
    report.here.line = line;
    std::strncpy(report.here.file, file, sizeof report.here.file - 1);
    std::strncpy(report.text, what, sizeof report.text - 1);
  });
}

TS_EXPORT uint32_t ts_active_mask(int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  self->line = line;
  self->file = file;
  self->state = GATHERING;
  leave(w, self);
  return self->mask;
}

TS_EXPORT void ts_check(const void* pointer, uint64_t size, int access, uint64_t alignment, uint64_t pc) {
  Worker* w = worker;
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  if (!w || !w->current) return;
  if (address & (alignment - 1)) return misaligned(w, address, size, access, alignment, pc);
  const bool meets = access == ATOMIC && w->launch->races;
  if (meets) synchronise(w, address, true, false);
  slow(w, address, size, access, pc);
  if (meets) synchronise(w, address, false, true);
}

TS_EXPORT void ts_atomic_done(int changed, uint64_t pc) {
  Worker* w = worker;
  if (!w || !w->current) return;
  if (!changed) return idle(w, pc);
  w->idle = w->quiet = 0;
  if (++w->atomics % 64 == 0) yield_now(w);
}

TS_EXPORT void ts_fence() {
  Worker* w = worker;
  if (!w || !w->current) return;
  if (w->current->fences < 0xffff) ++w->current->fences;
  w->current->fenced_epoch = w->block->released;
}

TS_EXPORT void ts_pause() {
  Worker* w = worker;
  if (!w || !w->current) return;
  w->current->polls |= 15;
  idle(w, TS_RETURN_ADDRESS);
}

TS_EXPORT uint64_t ts_clock() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

TS_EXPORT void ts_fault(const char* text, uint64_t pc) { fault(text, pc); }

TS_EXPORT int ts_launch(
    ts_entry entry, void** arguments, const uint32_t* grid, const uint32_t* block, uint64_t shared_bytes,
    const ts_range* ranges, int32_t range_count, const ts_options* options, void* writers, ts_report* report) {
  Launch launch;
  launch.entry = entry;
  launch.arguments = arguments;
  std::memcpy(launch.grid, grid, sizeof launch.grid);
  std::memcpy(launch.block, block, sizeof launch.block);
  launch.packed_grid = grid[0] | uint64_t(grid[1]) << 32 | uint64_t(grid[2]) << 48;
  launch.packed_block = block[0] | uint64_t(block[1]) << 32 | uint64_t(block[2]) << 48;
  launch.blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  launch.threads = block[0] * block[1] * block[2];
  launch.shared_bytes = shared_bytes;
  launch.ranges.assign(ranges, ranges + range_count);
  launch.options = *options;
  launch.report = report;
  std::unique_ptr<Races> races;
  if (options->races) {
    races = std::make_unique<Races>();
    launch.races = races.get();
  }
  launch.writers = static_cast<shadow::Writers*>(writers);
  if (launch.writers) ++launch.writers->launches;
  std::memset(report, 0, sizeof *report);
  {
    std::lock_guard<std::mutex> hold(pool_lock);
    if (pool.stack_bytes != options->stack_bytes) {
      for (char* stack : pool.stacks) munmap(stack - page(), pool.stack_bytes + page());
      pool.stacks.clear();
      pool.stack_bytes = options->stack_bytes;
    }
  }
  uint64_t workers = std::max(1, options->workers);
  if (options->cooperative || launch.races || launch.writers) workers = 1;
  workers = std::min(workers, launch.blocks);
  launch.active = static_cast<int>(workers);
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < workers; ++i) threads.emplace_back(run, &launch);
  run(&launch);
  for (std::thread& thread : threads) thread.join();
  return report->kind;
}

TS_EXPORT void* ts_writers_new() { return new shadow::Writers; }
TS_EXPORT void ts_writers_delete(void* writers) { delete static_cast<shadow::Writers*>(writers); }
TS_EXPORT int ts_writers_of(void* writers, uint64_t address, uint32_t* out) {
  const shadow::Writer* writer = static_cast<shadow::Writers*>(writers)->of(address);
  if (writer) std::memcpy(out, writer, sizeof *writer);
  return writer != nullptr;
}

TS_EXPORT uint64_t ts_report_bytes() { return sizeof(ts_report); }

// What `-fsanitize=thread` calls before every access that may leave the thread's own variables.
#define TS_ACCESS(bytes, Word)                                                                                        \
  TS_EXPORT void __tsan_read##bytes(void* p) { check<Word, true>(here(p), READ, TS_RETURN_ADDRESS); }                 \
  TS_EXPORT void __tsan_write##bytes(void* p) { check<Word, true>(here(p), WRITE, TS_RETURN_ADDRESS); }               \
  TS_EXPORT void __tsan_unaligned_read##bytes(void* p) { check<Word>(here(p), READ, TS_RETURN_ADDRESS); }             \
  TS_EXPORT void __tsan_unaligned_write##bytes(void* p) { check<Word>(here(p), WRITE, TS_RETURN_ADDRESS); }           \
  TS_EXPORT void __tsan_volatile_read##bytes(void* p) { polled(here(p), bytes, TS_RETURN_ADDRESS); }                  \
  TS_EXPORT void __tsan_volatile_write##bytes(void* p) { signalled(here(p), bytes, TS_RETURN_ADDRESS); }               \
  TS_EXPORT void __tsan_unaligned_volatile_read##bytes(void* p) { polled(here(p), bytes, TS_RETURN_ADDRESS); }        \
  TS_EXPORT void __tsan_unaligned_volatile_write##bytes(void* p) { signalled(here(p), bytes, TS_RETURN_ADDRESS); }

// Volatile accesses, which flags that threads wait for are made of. They race with plain ones only.
static void volatile_access(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  Races* races = w->launch->races;
  w->launch->races = nullptr;  // checked, but not recorded as a plain access
  slow(w, address, size, access, pc);
  w->launch->races = races;
  if (!races) return;
  if (access == READ) synchronise(w, address, true, false);
  look_for_races(w, address, size, ATOMIC, pc);
  if (access == WRITE) synchronise(w, address, false, true);
}

static void signalled(uint64_t address, uint64_t size, uint64_t pc) {
  Worker* w = worker;
  if (!w || !w->current) return;
  volatile_access(w, address, size, WRITE, pc);
  w->idle = w->quiet = 0;
}

static void polled(uint64_t address, uint64_t size, uint64_t pc) {
  Worker* w = worker;
  if (!w || !w->current) return;
  volatile_access(w, address, size, READ, pc);
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<void*>(address), std::min<uint64_t>(size, 8));
  Fiber* self = w->current;
  if (self->polled == address && self->polled_value == value) {
    idle(w, pc);
    // Others have run meanwhile, and the read itself is still to come.
    if (w->launch->races) synchronise(w, address, true, false);
    return;
  }
  self->polled = address;
  self->polled_value = value;
}

TS_ACCESS(1, uint8_t)
TS_ACCESS(2, uint16_t)
TS_ACCESS(4, uint32_t)
TS_ACCESS(8, uint64_t)
TS_ACCESS(16, Vector16)
#define TS_NUMBERED(bytes, Word)                                                                                      \
  TS_EXPORT void ts_read##bytes(const void* p, uint64_t pc) {                                                         \
    const uint64_t address = reinterpret_cast<uint64_t>(p);                                                           \
    if (__builtin_expect(address & (bytes - 1), 0)) return misaligned(worker, address, bytes, READ, bytes, pc);       \
    check<Word>(address, READ, pc);                                                                                   \
  }                                                                                                                   \
  TS_EXPORT void ts_write##bytes(void* p, uint64_t pc) {                                                              \
    if (__builtin_expect(here(p) & (bytes - 1), 0)) return misaligned(worker, here(p), bytes, WRITE, bytes, pc);      \
    check<Word>(here(p), WRITE, pc);                                                                                  \
  }
TS_NUMBERED(1, uint8_t)
TS_NUMBERED(2, uint16_t)
TS_NUMBERED(4, uint32_t)
TS_NUMBERED(8, uint64_t)
TS_NUMBERED(16, Vector16)
TS_EXPORT void ts_volatile(void* p, uint64_t size, int access, uint64_t pc) {
  access == READ ? polled(here(p), size, pc) : signalled(here(p), size, pc);
}
TS_EXPORT void ts_out_of_range(const void* data, int64_t index, uint64_t extent, int axis, uint64_t pc) {
  fail(TS_OUT_OF_BOUNDS, [&](ts_report& report) {
    place(report.here, worker->current, pc);
    const uint64_t address = reinterpret_cast<uint64_t>(data);
    if (address - worker->stack_low < worker->stack_bytes) report.region_kind = TS_STACK;
    else describe_nearest(worker, report, address);
    report.address = static_cast<uint64_t>(index);
    report.size = extent;
    report.item = static_cast<uint64_t>(axis);
    std::strncpy(report.text, "index", sizeof report.text - 1);
  });
}
TS_EXPORT void __tsan_read_range(void* p, unsigned long size) { slow(worker, here(p), size, READ, TS_RETURN_ADDRESS); }
TS_EXPORT void __tsan_write_range(void* p, unsigned long size) { slow(worker, here(p), size, WRITE, TS_RETURN_ADDRESS); }

// What `-fsanitize=alignment,bounds` calls when a check made in line has failed.
struct Location {
  const char* file;
  uint32_t line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1];
};
struct Mismatch {
  Location at;
  const TypeName* type;
  uint8_t log_alignment, access;
};
struct Overrun {
  Location at;
  const TypeName *array, *index;
};

TS_EXPORT void __ubsan_handle_type_mismatch_v1(Mismatch* data, uint64_t address) {
  Worker* w = worker;
  if (!w || !w->current) return;
  const uint64_t alignment = uint64_t(1) << data->log_alignment;
  if (!(address & (alignment - 1))) return;
  const uint64_t pc = TS_RETURN_ADDRESS;
  fail(TS_MISALIGNED, [&](ts_report& report) {
    place(report.here, w->current, pc, data->access == 1 ? WRITE : READ);
    report.address = address;
    report.size = 1;
    report.mask = static_cast<uint32_t>(alignment);
    describe_nearest(w, report, address);
    std::strncpy(report.text, data->type->name, sizeof report.text - 1);
  });
}

TS_EXPORT void __ubsan_handle_out_of_bounds(Overrun* data, uint64_t index) {
  Worker* w = worker;
  if (!w || !w->current) return;
  const uint64_t pc = TS_RETURN_ADDRESS;
  fail(TS_OUT_OF_BOUNDS, [&](ts_report& report) {
    place(report.here, w->current, pc);
    report.region_kind = -1;
    const uint16_t info = data->index->info;  // bit 0: signed; the others: log2 of the width
    report.offset = static_cast<int64_t>(index);
    if ((info & 1) && info >> 1 == 5) report.offset = static_cast<int32_t>(index);
    std::strncpy(report.text, data->array->name, sizeof report.text - 1);
  });
}

// clang's, for what GCC reads and writes in line.
TS_EXPORT void* __tsan_memcpy(void* to, const void* from, unsigned long size) {
  if (size) {
    slow(worker, reinterpret_cast<uint64_t>(from), size, READ, TS_RETURN_ADDRESS);
    slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  }
  return std::memcpy(to, from, size);
}
TS_EXPORT void* __tsan_memmove(void* to, const void* from, unsigned long size) {
  if (size) {
    slow(worker, reinterpret_cast<uint64_t>(from), size, READ, TS_RETURN_ADDRESS);
    slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  }
  return std::memmove(to, from, size);
}
TS_EXPORT void* __tsan_memset(void* to, int value, unsigned long size) {
  if (size) slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  return std::memset(to, value, size);
}
TS_EXPORT void __tsan_init() {}
TS_EXPORT void __tsan_vptr_update(void**, void*) {}
TS_EXPORT void __tsan_vptr_read(void**) {}
TS_EXPORT void __tsan_func_entry(void*) {}
TS_EXPORT void __tsan_func_exit() {}
}
