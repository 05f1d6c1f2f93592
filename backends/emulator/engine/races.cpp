#include "races.h"

#include <algorithm>
#include <cstring>

#include "clusters.h"
#include "reports.h"

namespace engine {
namespace {

// What every access of a watched kernel goes through is inlined, though it has several callers: it costs a quarter
// less.
#define HOT inline __attribute__((always_inline))

HOT shadow::Record record_of(Worker* w, int access, uint64_t pc) {
  const Fiber* self = w->current;
  const Block* block = w->block;
  shadow::Record record;
  record.thread = static_cast<uint32_t>(block->number << 10 | self->number) + 1;
  record.epoch = (block->released & shadow::EPOCH) | static_cast<uint32_t>(access & 3) << 30;
  record.warp_clock = block->clocks[self->number / 32].of[self->number % 32][self->number % 32];
  record.clock = static_cast<uint16_t>(self->fences);
  if (access == VOLATILE_WRITE || w->copies) record.clock |= shadow::STORES;
  record.pc = static_cast<uint32_t>(pc - w->launch->options.module);
  return record;
}

// Whether what `record` did is over for the thread that runs.
HOT bool ordered(Worker* w, const shadow::Record& record, uint32_t me) {
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
  if (at.access == shadow::VOLATILE) at.access = record.clock & shadow::STORES ? WRITE : READ;
}

// Where it is kept what was released at an address.
std::unordered_map<uint64_t, shadow::Knowledge>& releases_of(Worker* w, uint64_t address) {
  Block* block = owner(w, address);
  return block ? block->at : w->launch->races->released;
}

// What the thread that runs has done, and knows, is released at an address.
void release(Worker* w, uint64_t address) {
  Fiber* self = w->current;
  Block* block = w->block;
  shadow::Knowledge& out = releases_of(w, address)[address];
  if (self->fences) shadow::Knowledge::raise(out.threads,
      static_cast<uint32_t>(block->number << 10 | self->number) + 1, self->fences);
  if (self->fenced_epoch)
    shadow::Knowledge::raise(out.blocks, static_cast<uint32_t>(block->number), self->fenced_epoch);
  // What the lanes of its warp had done when they last met it.
  const uint32_t lane = self->number % 32, first = static_cast<uint32_t>(block->number << 10 | (self->number & ~31u));
  const uint16_t* met = block->clocks[self->number / 32].of[lane];
  for (uint32_t other = 0; other < 32; ++other)
    if (other != lane && met[other])
      shadow::Knowledge::raise(out.lanes, first + other + 1, shadow::Knowledge::moment(block->released, met[other]));
  if (block->known) out.join(*block->known);
  if (self->known) out.join(*self->known);
}

// Whether two lanes of a warp store by one instruction.
bool same_store(const shadow::Record& one, const shadow::Record& other) {
  return (one.thread - 1) >> 5 == (other.thread - 1) >> 5 && one.pc == other.pc;
}

// Whether lanes of a warp hand each other values by volatile accesses alone, as before sm_70: one has stored to an
// element of a shared array that the other reads, and has made no fence. What has fewer elements than a warp lanes may
// be a flag, which is set and polled like that.
bool warp_synchronous(Worker* w, uint64_t address, const shadow::Record& one, const shadow::Record& other) {
  const bool stores = one.clock & shadow::STORES;
  if ((one.thread - 1) >> 5 != (other.thread - 1) >> 5 || stores == bool(other.clock & shadow::STORES)) return false;
  if ((one.clock | other.clock) & ~shadow::STORES) return false;
  const uint64_t offset = address - reinterpret_cast<uint64_t>(w->block->arena);
  for (const Array& array : w->block->arrays)
    if (offset - array.offset < array.bytes) return array.bytes >= 32 * (array.site ? array.site->item : 4);
  return false;
}

// Whether an access of the kind `later` shows every conflict that `earlier`, which comes before it, could show.
bool replaces(int later, const shadow::Record& earlier) {
  if (later == WRITE) return true;
  if (later == VOLATILE_READ && earlier.clock & shadow::STORES) return false;
  return static_cast<uint32_t>(later & 3) == earlier.epoch >> 30;
}

// Of those of four that come from the same `unit`, a warp or a block.
HOT uint32_t repeated(shadow::Four unit) {
  const uint32_t next = shadow::bits(unit == shadow::Four{unit[1], unit[2], unit[3], unit[0]});
  return next | (next << 1 & 14) | next >> 3 | shadow::bits(unit == shadow::Four{unit[2], unit[3], unit[0], unit[1]});
}

// The usual case, without looking at what others know: nothing there can conflict, because it came before a barrier
// that this block has passed, was done by this thread, or is a read as this one is. Then the access is remembered.
HOT bool simple(Worker* w, shadow::Cell& cell, uint32_t& full, const shadow::Record& mine, int access) {
  using shadow::bits, shadow::Four, shadow::Signed;
  const uint32_t me = mine.thread - 1;
  const Four it = cell.thread - 1;
  const Signed epoch = Signed(cell.epoch & shadow::EPOCH), now = Signed{} + static_cast<int32_t>(w->block->released);
  const uint32_t none = bits(cell.thread == 0), read = bits(cell.epoch >> 30 == READ);
  const uint32_t ours = bits(it >> 10 == me >> 10), before = none | bits(it == me) | (ours & bits(epoch < now));
  if ((access == READ ? before | read : before) != 15) return false;
  if (access == WRITE) {  // shows every conflict that those before it could show
    cell.put_alone(mine);
    full = 0;
    return true;
  }
  // What is superfluous goes first; then rather one of a warp or block that other records stand for.
  const uint32_t warp = bits(it >> 5 == me >> 5), over = read & before;
  uint32_t kept = none ? none : over ? over : read & warp;
  if (!kept) {
    const uint32_t warps = read & repeated(it >> 5), blocks = read & repeated(it >> 10);
    kept = warps ? warps : read & ours ? read & ours : blocks ? blocks : read;
    if (!kept) return false;
  }
  const int slot = __builtin_ctz(kept);
  cell.put(slot, mine);
  if (!(none | over)) full = (ours | 1u << slot) == 15 ? w->block->state : shadow::BLOCKS;
  return true;
}

// An access to `size` bytes from `start` with one cell of those it touches, where it is not simple. False: a race.
__attribute__((noinline)) bool compare(
    Worker* w, shadow::Cell& cell, const shadow::Record& mine, uint64_t start, uint64_t size, int access) {
  int slot = -1;
  for (int i = 0; i < 4; ++i) {
    const shadow::Record other = cell.at(i);
    if (!other.thread) {
      if (slot < 0) slot = i;
      continue;
    }
    const int kind = static_cast<int>(other.epoch >> 30);
    const Fiber::Suspect suspect = {start, other, mine, size};
    const bool over = ordered(w, other, mine.thread);
    const bool volatiles = kind == shadow::VOLATILE && (access & 3) == shadow::VOLATILE;
    if (!over && volatiles && warp_synchronous(w, start, other, mine)) {
      accuse(w, suspect);
      return false;
    }
    bool before = over;
    if (!over && kind >= ATOMIC) {  // the accesses to one address have one order: all before the last atomic
      const auto last = w->launch->races->last.find(start);
      before = last != w->launch->races->last.end() && ordered(w, last->second, mine.thread);
    }
    if (!before && kind == WRITE && access == WRITE && size <= sizeof w->repeated.before && same_store(other, mine)) {
      if (w->repeated.address) continue;
      w->repeated.address = start;
      w->repeated.size = size;
      std::memcpy(w->repeated.before, reinterpret_cast<void*>(start), size);
      w->repeated.first = other;
      w->repeated.second = mine;
      slot = i;
      continue;
    }
    if (!before && (kind != READ || access != READ) && !(kind >= ATOMIC && access >= ATOMIC)) {
      if (kind >= ATOMIC && access == READ) {
        const Fiber::Suspect& earlier = w->current->suspect;
        if (earlier.address && earlier.address != start) {
          accuse(w, earlier);
          return false;
        }
        w->current->suspect = suspect;
        continue;
      }
      accuse(w, suspect);
      return false;
    }
    // A thread's own read before its atomic: the usual start of a loop of compare-and-swaps.
    const bool guess = kind == READ && access >= ATOMIC && other.thread == mine.thread;
    if (guess || ((kind == shadow::VOLATILE ? over : before) && replaces(access, other))) {
      if (slot >= 0) cell.thread[i] = 0;
      else slot = i;
    }
  }
  if (slot < 0) {
    // All are needed: rather a read than a write, and one of a warp or block that another record stands for too.
    int best = -1;
    for (int i = 0; i < 4; ++i) {
      const shadow::Record other = cell.at(i);
      int worth = other.epoch >> 30 == READ ? 8 : 0;
      if ((other.thread - 1) >> 10 == (mine.thread - 1) >> 10) worth += 2;
      if ((other.thread - 1) >> 5 == (mine.thread - 1) >> 5) worth += 1;
      if (worth > best) {
        best = worth;
        slot = i;
      }
    }
  }
  cell.put(slot, mine);
  return true;
}

}  // namespace

void accuse(Worker* w, const Fiber::Suspect& suspect, const char* lacks) {
  fail(TS_RACE, [&](ts_report& report) {
    unpack_place(w, report.there, suspect.first);
    unpack_place(w, report.here, suspect.second);
    report.address = suspect.address;
    report.size = suspect.size;
    describe_nearest(w, report, suspect.address);
    std::strncpy(report.text, lacks, sizeof report.text - 1);
  });
}

void settle_now(Worker* w) {
  Worker::Repeated& repeated = w->repeated;
  const uint64_t address = repeated.address;
  repeated.address = 0;
  if (!std::memcmp(repeated.before, reinterpret_cast<void*>(address), repeated.size)) return;
  accuse(w, {address, repeated.first, repeated.second, repeated.size});
}

void share_at_barrier(Worker* w, Block* block) {
  reorder(w, block);
  for (shadow::WarpClocks& clocks : block->clocks) clocks.reset();
  const auto known = [&]() -> shadow::Knowledge& {
    if (!block->known) block->known = std::make_unique<shadow::Knowledge>();
    return *block->known;
  };
  for (Fiber& fiber : block->fibers) {
    if (fiber.known) known().join(*fiber.known);
    fiber.known.reset();
    if (block->fenced && fiber.fences)
      shadow::Knowledge::raise(
          known().threads, static_cast<uint32_t>(block->number << 10 | fiber.number) + 1, fiber.fences);
  }
  block->fenced = false;
}

void share_in_cluster(Worker* w, Cluster* cluster) {
  shadow::Knowledge all;
  for (Block* block : cluster->blocks) {
    ++block->released;
    share_at_barrier(w, block);
    if (block->known) all.join(*block->known);
  }
  for (Block* block : cluster->blocks)
    shadow::Knowledge::raise(all.blocks, static_cast<uint32_t>(block->number), static_cast<uint32_t>(block->released));
  for (Block* block : cluster->blocks) {
    if (!block->known) block->known = std::make_unique<shadow::Knowledge>();
    block->known->join(all);
  }
}

void look_for_races(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc) {
  if (w->repeated.address) settle(w);
  const shadow::Record mine = record_of(w, access, pc);
  const int shift = (address | size) & 1 ? 0 : (address | size) & 2 ? 1 : 2;
  const uint64_t end = address + size;
  for (uint64_t at = address; at < end;) {
    const shadow::Pages::Recent& page = w->launch->races->pages.at(at, shift);
    shadow::Cell& cell = page.cells[page.granule(at)];
    uint32_t& full = page.full[page.granule(at)];
    if (access >= ATOMIC || !simple(w, cell, full, mine, access)) {
      full = 0;
      if (!compare(w, cell, mine, address, size, access)) return;
    }
    at += uint64_t(1) << page.shift;
  }
}

void look_for_proxies(Worker* w, uint64_t address, uint64_t size, uint64_t pc) {
  const Fiber* self = w->current;
  for (uint64_t at = address; at < address + size;) {
    const shadow::Pages::Recent& page = w->launch->races->pages.at(at, 2);
    const shadow::Cell& cell = page.cells[page.granule(at)];
    at += uint64_t(1) << page.shift;
    for (int i = 0; i < 4; ++i) {
      const shadow::Record other = cell.at(i);
      const bool plain = other.epoch >> 30 == WRITE && !(other.clock & shadow::STORES);
      if (!other.thread || !plain || (other.thread - 1) >> 10 != w->block->number) continue;
      const uint32_t epoch = other.epoch & shadow::EPOCH;
      if (w->block->fibers[(other.thread - 1) & 1023].proxied > epoch || self->proxied > epoch) continue;
      accuse(w, {at - (uint64_t(1) << page.shift), other, record_of(w, READ, pc), size}, "fence.proxy.async");
    }
  }
}

void synchronise(Worker* w, uint64_t address, bool acquires, bool releases) {
  Races* races = w->launch->races;
  Fiber* self = w->current;
  Block* block = w->block;
  reorder(w, block);
  if (self->suspect.address == address) self->suspect.address = 0;
  if (acquires) {
    const auto& releases = releases_of(w, address);
    const auto found = releases.find(address);
    if (found != releases.end()) {
      if (!self->known) self->known = std::make_unique<shadow::Knowledge>();
      self->known->join(found->second);
    }
  }
  if (releases) races->last[address] = record_of(w, ATOMIC, 0);
  if (releases && (self->fenced || (block->known && !block->known->threads.empty()))) release(w, address);
}

void pass_at(Block* block, uint64_t address) { block->passed[address] = block->at[address]; }

void hand_over(Worker* w, Block* block, uint64_t address, const std::vector<Fiber*>& waiting) {
  reorder(w, block);
  const shadow::Knowledge phase = std::move(block->at[address]);
  block->at.erase(address);
  for (Fiber* fiber : waiting) {
    if (!fiber->known) fiber->known = std::make_unique<shadow::Knowledge>();
    fiber->known->join(phase);
  }
}

void acquire_at(Worker* w, uint64_t address) {
  reorder(w, w->block);
  Fiber* self = w->current;
  if (!self->known) self->known = std::make_unique<shadow::Knowledge>();
  self->known->join(owner(w, address)->passed[address]);
}

void release_at(Worker* w, uint64_t address) {
  reorder(w, w->block);
  Fiber* self = w->current;
  if (self->fences < 0x7fff) ++self->fences;
  self->fenced_epoch = w->block->released;
  w->launch->races->last[address] = record_of(w, ATOMIC, 0);
  release(w, address);
}

}  // namespace engine
