#include "accesses.h"

#include <algorithm>
#include <cstring>

#include "clusters.h"
#include "fibers.h"
#include "memory.h"
#include "races.h"
#include "reports.h"

namespace engine {
namespace {

inline __attribute__((always_inline)) void note(
    Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc, bool global) {
  if (w->launch->races && (access != READ || !spared(w, address, size))) look_for_races(w, address, size, access, pc);
  if (w->launch->writers && access != READ && global) {
    const uint64_t base = w->launch->options.module;
    const shadow::Writer writer = {w->launch->writers->launches, static_cast<uint32_t>(w->block->number),
                                   w->current->number, static_cast<uint32_t>(pc - base)};
    w->launch->writers->note(address, size, writer);
  }
}

// A thread reads shared memory that nobody has written, and does not go on. What others of its block do first, up to
// where they wait, tells whether one of them writes there with no barrier between.
__attribute__((cold, noinline)) void read_too_early(
    Worker* w, Block* block, uint64_t address, uint64_t size, int access, uint64_t pc) {
  if (w->launch->races) settle(w);
  while (w->early.block) yield_now(w);  // another thread has done so before
  w->early = {block, w->current, address, size, pc, access};
  for (int turn = 0; turn < 64 && !w->early.met && !w->empty(); ++turn) yield_now(w);
  fail(TS_UNINITIALISED_SHARED, [](ts_report&) {});
}

void note_first_write(Worker* w, const Block* block, uint64_t address, uint64_t size, int access, uint64_t pc) {
  Early& early = w->early;
  if (block != early.block || w->lands || early.met) return;
  if (address >= early.address + early.size || early.address >= address + size) return;
  early.met = true;
  place(early.who, w->current, pc, access);
}

__attribute__((noinline)) void look_up(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  if (Block* block = owner(w, address)) {
    const uint64_t offset = address - here(block->arena);
    if (block->done == w->launch->threads && block != w->block)
      fault("shared memory of a block of the cluster that has come to its end", pc);
    uint8_t* states = block->states + offset;
    const uint64_t end = std::min(offset + size, ARENA);
    bool missing = offset + size > ARENA, unwritten = missing, flying = false;
    for (uint64_t i = 0; i < end - offset; ++i) unwritten |= states[i] != WRITTEN;
    for (uint64_t i = 0; unwritten && i < end - offset; ++i) {
      missing |= states[i] == 0;
      flying |= states[i] == IN_FLIGHT;
    }
    if (missing) return refuse(w, TS_OUT_OF_BOUNDS, address, size, access, pc);
    if (unwritten && access != WRITE) {
      if (!flying && !w->lands && !w->copies) return read_too_early(w, block, address, size, access, pc);
      return refuse(w, TS_UNINITIALISED_SHARED, address, size, access, pc, flying ? "in flight" : "");
    }
    if (unwritten) {
      if (w->early.block) note_first_write(w, block, address, size, access, pc);
      std::memset(states, WRITTEN, size);
    }
    if (block->stages && !w->lands) follow_stages(w, block, offset, size, access, pc);
    if (w->watched) note(w, address, size, access, pc, false);
    return;
  }
  if (address - w->stack_low <= w->stack_bytes - size) return;
  bool gap = false;
  for (const ts_range& range : w->launch->ranges) {
    if (address - range.start < range.bytes && address + size - range.start <= range.bytes) {
      const uint64_t at = range.pitch ? (address - range.start) % range.pitch : 0;
      if (range.pitch && at + size > range.row) {  // another argument may lie there
        gap = true;
        continue;
      }
      if (access != READ && !range.writable) break;
      const Range row = range.pitch ? Range{address - at, range.row} : Range{range.start, range.bytes};
      if (w->watched) {
        if (row.bytes >= 16 && range.writable) w->watched_sites[(pc ^ pc >> 9) & (SITES - 1)] = {pc, row};
        return note(w, address, size, access, pc, true);
      }
      if (row.bytes >= 16) w->sites[(pc ^ pc >> 9) & (SITES - 1)] = row;
      return;
    }
  }
  const ts_options& options = w->launch->options;
  if (access == READ && address >= options.readable_low && address + size <= options.readable_high) return;
  if (!options.checks) return;
  if (in_heap(address, size)) {
    if (w->watched) note(w, address, size, access, pc, true);
    return;
  }
  refuse(w, TS_OUT_OF_BOUNDS, address, size, access, pc, gap ? "gap" : "");
}

void volatile_access(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  Races* races = w->launch->races;
  w->launch->races = nullptr;  // checked, but not recorded as a plain access
  slow(w, address, size, access, pc);
  w->launch->races = races;
  if (!races) return;
  if (access == READ) synchronise(w, address, true, false);
  look_for_races(w, address, size, access == READ ? VOLATILE_READ : VOLATILE_WRITE, pc);
  if (access == WRITE) synchronise(w, address, false, true);
}

}  // namespace

__attribute__((noinline)) void slow(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  if (!w || !w->current) return;
  if (w->watched && size == 4) {  // most accesses, without a loop over bytes
    const uint64_t offset = address - here(w->block->arena);
    const Site& known = w->watched_sites[(pc ^ pc >> 9) & (SITES - 1)];
    if (offset < ARENA - 4) {
      uint32_t states;
      std::memcpy(&states, w->block->states + offset, 4);
      if (states == WRITTEN * 0x01010101u) {
        if (Stages* stages = w->block->stages.get())
          if (access != READ || stages->granules[offset / 4].told != telling(pc, w->block->moment) || offset % 4)
            follow_stages(w, w->block, offset, 4, access, pc);
        return note(w, address, 4, access, pc, false);
      }
    } else if (known.pc == pc && address - known.range.start <= known.range.bytes - 4) {
      return note(w, address, 4, access, pc, true);
    }
  }
  look_up(w, address, size, access, pc);
}

void begun(Worker* w, uint64_t address, uint64_t size) {
  const Block* block = owner(w, address);
  if (!block) return;
  const uint64_t offset = address - here(block->arena);
  uint8_t* states = block->states + offset;
  for (uint64_t i = 0; i < std::min(size, ARENA - offset); ++i)
    if (states[i] == DECLARED) states[i] = WRITTEN;
}

void signalled(uint64_t address, uint64_t size, uint64_t pc) {
  Worker* w = worker;
  if (!w || !w->current) return;
  volatile_access(w, address, size, WRITE, pc);
  w->idle = w->quiet = 0;
  w->wakes = 0;
}

void polled(uint64_t address, uint64_t size, uint64_t pc) {
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

}  // namespace engine
