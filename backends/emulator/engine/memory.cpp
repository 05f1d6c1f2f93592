#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "accesses.h"
#include "reports.h"

namespace engine {
namespace {

struct Heap {
  std::mutex lock;
  std::map<uint64_t, uint64_t> given;  // where it begins, and how much
};
Heap heap;

constexpr uint64_t RED_ZONE = 1024;  // between two shared arrays

// What no worker uses, kept from one launch to the next.
struct Pool {
  std::mutex lock;
  std::vector<char*> stacks, arenas;
  uint64_t stack_bytes = 0;
};
Pool pool;

uint64_t page() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

char* map(uint64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

char* pop(std::vector<char*>& free) {
  std::lock_guard<std::mutex> hold(pool.lock);
  if (free.empty()) return nullptr;
  char* taken = free.back();
  free.pop_back();
  return taken;
}

}  // namespace

char* take_stack(Worker* w) {
  if (!w->stacks.empty()) {
    char* stack = w->stacks.back();
    w->stacks.pop_back();
    return stack;
  }
  char* stack = pop(pool.stacks);
  if (!stack) {
    char* memory = map(w->launch->options.stack_bytes + page());
    if (!memory) return nullptr;
    mprotect(memory, page(), PROT_NONE);
    stack = memory + page();
  }
  w->all_stacks.push_back(stack);
  return stack;
}

char* take_arena() {
  char* arena = pop(pool.arenas);
  if (arena) return arena;
  char* memory = map(3 * ARENA);  // from where it begins at a multiple of ARENA, as arrays of any alignment need
  if (!memory) return nullptr;
  arena = memory + (ARENA - reinterpret_cast<uint64_t>(memory) % ARENA) % ARENA;
  if (arena != memory) munmap(memory, static_cast<size_t>(arena - memory));
  munmap(arena + 2 * ARENA, static_cast<size_t>(memory + ARENA - arena));
  return arena;
}

void give_back(Worker* w) {
  std::lock_guard<std::mutex> hold(pool.lock);
  for (auto& block : w->spare) {
    for (Fiber& fiber : block->fibers) release(fiber.context);
    pool.arenas.push_back(block->arena);
  }
  pool.stacks.insert(pool.stacks.end(), w->all_stacks.begin(), w->all_stacks.end());
}

void use_stacks_of(uint64_t bytes) {
  std::lock_guard<std::mutex> hold(pool.lock);
  if (pool.stack_bytes == bytes) return;
  for (char* stack : pool.stacks) munmap(stack - page(), pool.stack_bytes + page());
  pool.stacks.clear();
  pool.stack_bytes = bytes;
}

bool in_heap(uint64_t address, uint64_t size) {
  std::lock_guard<std::mutex> hold(heap.lock);
  auto next = heap.given.upper_bound(address);
  if (next == heap.given.begin()) return false;
  --next;
  return address + size <= next->first + next->second;
}

void nearest_in_heap(uint64_t address, uint64_t& start, uint64_t& bytes) {
  std::lock_guard<std::mutex> hold(heap.lock);
  start = bytes = 0;
  auto next = heap.given.upper_bound(address);
  if (next != heap.given.begin()) --next;
  if (next == heap.given.end()) return;
  start = next->first;
  bytes = next->second;
}

uint64_t allocate(Block* block, const ts_site* site, uint64_t bytes, uint64_t align) {
  const uint64_t offset = (block->used + RED_ZONE + align - 1) / align * align;
  if (offset + bytes + RED_ZONE > ARENA) return 0;
  block->used = offset + bytes;
  block->arrays.push_back({site, offset, bytes});
  if (Stages* stages = block->stages.get())  // for what is in use: all blocks of a cooperative launch are there at once
    stages->granules.resize(std::max(stages->granules.size(), static_cast<size_t>(block->used + 3) / 4));
  std::memset(block->arena + offset, 0xff, bytes);
  std::memset(block->states + offset, DECLARED, bytes);
  return offset;
}

void clear(Worker* w, Block* block) {
  for (const Array& array : block->arrays) {
    std::memset(block->states + array.offset, 0, array.bytes);
    if (!w->launch->races) continue;
    const auto first = block->stages->granules.begin() + static_cast<ptrdiff_t>(array.offset / 4);
    std::fill(first, first + static_cast<ptrdiff_t>((array.bytes + 3) / 4), Stages::Granule());
    w->launch->races->pages.forget(reinterpret_cast<uint64_t>(block->arena) + array.offset, array.bytes);
  }
  block->at.clear();
  block->passed.clear();
  block->arrays.clear();
  block->used = 0;
}

}  // namespace engine

extern "C" {

TS_EXPORT void* ts_heap_new(uint64_t bytes) {
  using namespace engine;
  void* memory = std::malloc(bytes + RED_ZONE);
  if (!memory) return nullptr;
  std::memset(memory, 0xff, bytes + RED_ZONE);
  if (worker && worker->launch->races) {  // what another thread did here before it freed it
    settle(worker);
    worker->launch->races->pages.forget(here(memory), bytes + RED_ZONE);
  }
  std::lock_guard<std::mutex> hold(heap.lock);
  heap.given[here(memory)] = bytes;
  return memory;
}

TS_EXPORT void ts_heap_free(void* pointer, uint64_t pc) {
  using namespace engine;
  if (!pointer) return;
  bool known;
  {
    std::lock_guard<std::mutex> hold(heap.lock);
    known = heap.given.erase(here(pointer));
  }
  if (!known) fault("memory is freed that the device's heap has not given out, or twice", pc);
  std::free(pointer);
}

}  // extern "C"
