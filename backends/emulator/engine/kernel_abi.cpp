// What kernels call: who they are, shared arrays, barriers, warp operations, fences.
#include <algorithm>
#include <chrono>

#include "accesses.h"
#include "clusters.h"
#include "fibers.h"
#include "memory.h"
#include "races.h"
#include "reports.h"

using namespace engine;

namespace {
constexpr uint64_t STATIC_LIMIT = 48 << 10, TOTAL_LIMIT = 227 << 10;  // CUDA's own, sm_90

// The mask of a warp operation does not name the lane that brings it.
__attribute__((cold, noinline)) void left_out(Fiber* self) {
  fail(TS_INACTIVE_LANES, [&](ts_report& report) {
    waits(report.here, self);
    waits(report.there, self);
    report.lane = static_cast<int32_t>(self->number & 31);
    report.mask = self->mask;
    std::strncpy(report.text, self->what, sizeof report.text - 1);
  });
}

// At another form of the block's barrier, or in strict launches at another place, than who came first.
__attribute__((cold, noinline)) void diverges(Fiber* self) {
  fail(TS_DIVERGENT_BARRIER, [&](ts_report& report) {
    waits(report.here, &self->block->fibers[self->block->first]);
    waits(report.there, self);
  });
}

}  // namespace

extern "C" {

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
  uint64_t offset = 0;  // the same in all blocks of a cluster, which reach it from each other
  for (Block* each : block->cluster->blocks) {
    offset = allocate(each, site, site->bytes, std::max<uint64_t>(site->align, 128));
    if (!offset) fault("too many shared arrays", TS_RETURN_ADDRESS);
  }
  return block->arena + offset;
}

TS_EXPORT int ts_syncthreads(int kind, int predicate, int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  Block* block = self->block;
  settle(w);
  if (self->suspect.address) accuse(w, self->suspect);
  self->line = line;
  self->file = file;
  self->state = AT_BARRIER;
  if (block->arrived == 0) {
    block->first = self->number;
    block->line = line;
    block->kind = kind;
  } else if (block->kind != kind || (block->line != line && w->launch->options.strict)) {
    diverges(self);
  }
  block->count += predicate != 0;
  block->all &= predicate != 0;
  block->any |= predicate != 0;
  if (++block->arrived + block->done >= w->launch->threads) pass_barrier(w, block);
  leave(w, self);
  return block->result;
}

TS_EXPORT uint64_t ts_shared_address(const void* pointer) {
  const Block* block = owner(worker, here(pointer));
  return block ? (here(pointer) - here(block->arena)) | uint64_t(block->rank) << RANK : 0;
}
TS_EXPORT void* ts_shared_memory(uint64_t address) {
  const Block* own = worker->block;
  const uint64_t rank = address >> RANK & 0xff;
  if (rank == own->rank || rank >= own->cluster->blocks.size())
    return own->arena + (address & 0xffffffffu) - (uint64_t(own->rank) << RANK);
  return own->cluster->blocks[rank]->arena + (address & ((1u << RANK) - 1));
}

TS_EXPORT void ts_copy_async(void* to, const void* from, int size, int read, uint64_t pc) {
  Worker* w = worker;
  if ((size != 4 && size != 8 && size != 16) || read < 0 || read > size)
    fault("an asynchronous copy of other than 4, 8 or 16 bytes, or that reads more than it copies", pc);
  const uint64_t mask = static_cast<uint64_t>(size) - 1, target = here(to), source = here(from);
  if (target & mask) misaligned(w, target, mask + 1, WRITE, mask + 1, pc);
  if (read && source & mask) misaligned(w, source, mask + 1, READ, mask + 1, pc);
  if (!ts_shared_address(to)) refuse(w, TS_OUT_OF_BOUNDS, target, mask + 1, WRITE, pc);
  if (read) slow(w, source, static_cast<uint64_t>(read), READ, pc);
  slow(w, target, mask + 1, WRITE, pc);
  std::memset(w->shared_states + (target - here(w->block->arena)), IN_FLIGHT, mask + 1);
  std::memset(to, 0xff, mask + 1);
  Fiber* self = w->current;
  self->copies.push_back({target, source, static_cast<uint32_t>(size), static_cast<uint32_t>(read), self->groups, pc});
}

TS_EXPORT void ts_copy_commit() { ++worker->current->groups; }

TS_EXPORT void ts_copy_wait(int pending) {
  Worker* w = worker;
  Fiber* self = w->current;
  size_t done = 0;
  for (; done < self->copies.size(); ++done) {
    const Copy& copy = self->copies[done];
    if (copy.group + static_cast<uint32_t>(pending) >= self->groups) break;
    w->lands = true;
    slow(w, copy.to, copy.size, WRITE, copy.pc);
    w->lands = false;
    std::memset(reinterpret_cast<void*>(copy.to), 0, copy.size);
    std::memcpy(reinterpret_cast<void*>(copy.to), reinterpret_cast<void*>(copy.from), copy.read);
  }
  self->copies.erase(self->copies.begin(), self->copies.begin() + static_cast<ptrdiff_t>(done));
}

TS_EXPORT void ts_named_barrier(uint32_t number, uint32_t threads, int waits, int line, const char* file) {
  Worker* w = worker;
  Fiber* self = w->current;
  Block* block = self->block;
  settle(w);
  if (number > 15 || threads % 32 || !threads || threads > (w->launch->threads + 31) / 32 * 32)
    fault("a barrier has a number up to 15 and a multiple of 32 threads, at most those of the block",
        TS_RETURN_ADDRESS);
  Named& named = block->named[number];
  if (named.arrived && named.expected != threads)
    fault("a barrier is reached with different numbers of threads", TS_RETURN_ADDRESS);
  named.expected = threads;
  const uint64_t address = here(block->arena) + number;  // of no array
  if (w->launch->races) release_at(w, address);
  self->line = line;
  self->file = file;
  self->state = waits ? AT_NAMED : READY;
  self->mask = number;
  if (++named.arrived == threads) {
    named.arrived = 0;
    ++block->moment;
    w->scratch.clear();
    for (Fiber& fiber : block->fibers)
      if (fiber.state == AT_NAMED && fiber.mask == number) w->scratch.push_back(&fiber);
    if (w->launch->races) hand_over(w, block, address, w->scratch);
    arrange(w, w->scratch);
  }
  if (waits) leave(w, self);
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
    for (auto& block : w->resident) {
      ++block->moment;
      for (Fiber& fiber : block->fibers) w->scratch.push_back(&fiber);
    }
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
  if (!(mask >> lane & 1)) left_out(self);
  settle(w);
  Warp& warp = block->warps[base / 32];
  warp.waiting |= 1u << lane;
  if (warp.all_at(mask)) meet(w, block, base, mask, combine);
  leave(w, self);
}

TS_EXPORT void ts_fail_lane(uint32_t mask, int reader, int lane, const char* what, int line, const char* file) {
  Worker* w = worker;
  const Fiber* self = w->current;  // any lane of the warp: the last that came does the work of all
  const Fiber* reads = &self->block->fibers[(self->number & ~31u) + reader];
  fail(TS_INACTIVE_LANES, [&](ts_report& report) {
    waits(report.here, reads);
    waits(report.there, reads);
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

TS_EXPORT void ts_atomic_done(int changed, uint64_t pc) {
  Worker* w = worker;
  if (!w || !w->current) return;
  ++w->atomics;
  if (!changed) return idle(w, pc);
  w->idle = w->quiet = 0;
  if (w->atomics % 64 == 0) yield_now(w);
}

TS_EXPORT void ts_fence() {
  Worker* w = worker;
  if (!w || !w->current) return;
  if (w->current->fences < 0x7fff) ++w->current->fences;
  w->current->fenced = true;
  w->current->fenced_epoch = w->block->released;
  w->block->fenced = true;
  if (w->launch->races) reorder(w, w->block);
}

TS_EXPORT void ts_proxy_fence() { worker->current->proxied = worker->block->released + 1; }

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

}  // extern "C"
