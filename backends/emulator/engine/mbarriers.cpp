#include "mbarriers.h"

#include <cstdio>

#include "accesses.h"
#include "clusters.h"
#include "fibers.h"
#include "races.h"
#include "reports.h"

namespace engine {
namespace {

constexpr uint32_t WAKES = 64;  // in a row, of all threads that wait, before they count as stuck

Mbarrier& at(void* p, int access, uint64_t pc) {
  Worker* w = worker;
  if (here(p) & 7) misaligned(w, here(p), 8, access, 8, pc);
  if (!owner(w, here(p))) refuse(w, TS_OUT_OF_BOUNDS, here(p), 8, access, pc);
  slow(w, here(p), 8, access, pc);
  return *static_cast<Mbarrier*>(p);
}

// The next phase begins if this one is over.
void turn(Worker* w, Block* block, Mbarrier& barrier) {
  w->wakes = 0;
  w->idle = w->quiet = 0;
  if (barrier.pending || barrier.transactions) return;
  barrier.phase ^= 1;
  ++block->moment;
  barrier.pending = barrier.expected;
  if (w->launch->races) pass_at(block, here(&barrier));
  w->scratch.clear();
  for (Fiber& fiber : block->fibers)
    if (fiber.state == AT_MBARRIER && fiber.waits_at == here(&barrier)) w->scratch.push_back(&fiber);
  if (w->scratch.empty()) return;
  // Those who waited go on at once, before others that are ready, in some orders: what the others have yet to do then
  // was not waited for.
  bool first = w->launch->options.order == 1;
  if (w->launch->options.order == 2) {
    w->random = mix(w->random);
    first = w->random & 1;
  }
  arrange(w, w->scratch, first);
}

}  // namespace

void complete(Worker* w, Block* block, uint64_t offset, uint64_t bytes) {
  Mbarrier& barrier = *reinterpret_cast<Mbarrier*>(block->arena + offset);
  barrier.transactions -= static_cast<int64_t>(bytes);
  turn(w, block, barrier);
}

bool wake(Worker* w) {
  if (++w->wakes > WAKES) return false;
  w->scratch.clear();
  for (auto& block : w->resident)
    for (Fiber& fiber : block->fibers)
      if (fiber.state == AT_MBARRIER) w->scratch.push_back(&fiber);
  if (w->scratch.empty()) return false;
  arrange(w, w->scratch);
  return true;
}

void describe_wait(Worker* w, ts_report& report, const Fiber* fiber) {
  const Mbarrier& barrier = *reinterpret_cast<Mbarrier*>(fiber->waits_at);
  w->block = fiber->block;
  describe_nearest(w, report, fiber->waits_at);
  report.address = fiber->waits_at;
  report.size = 8;
  const int arrivals = static_cast<int>(barrier.pending), bytes = static_cast<int>(barrier.transactions);
  int length = std::snprintf(report.text, sizeof report.text, "whose phase lacks %d of %d arrivals", arrivals,
                             static_cast<int>(barrier.expected));
  if (bytes > 0) length += std::snprintf(report.text + length, sizeof report.text - length, " and %d bytes", bytes);
  if (bytes < 0)
    length += std::snprintf(
        report.text + length, sizeof report.text - length, " and has %d bytes more than were expected", -bytes);
}

}  // namespace engine

using namespace engine;

extern "C" {

TS_EXPORT void ts_mbarrier_init(void* p, uint32_t count, uint64_t pc) {
  Mbarrier& barrier = at(p, WRITE, pc);
  barrier.pending = barrier.expected = count;
  barrier.transactions = 0;
  barrier.phase = 0;
}

TS_EXPORT uint64_t ts_mbarrier_arrive(void* p, uint32_t count, uint32_t bytes, int drops, uint64_t pc) {
  Worker* w = worker;
  const Block* block = owner(w, here(p));
  // Nobody waits there any more. Public kernels do without the cluster's last barrier.
  if (block && block != w->block && block->done == w->launch->threads && !w->launch->options.strict) return 0;
  Mbarrier& barrier = at(p, ATOMIC, pc);
  if (w->launch->races) release_at(w, here(p));
  const uint64_t before = barrier.phase;
  if (count > barrier.pending) fault("an mbarrier has more arrivals than it was initialised for", pc);
  if (drops) barrier.expected -= count;
  barrier.transactions += bytes;
  barrier.pending -= count;
  turn(w, owner(w, here(p)), barrier);
  return before << 63;
}

TS_EXPORT void ts_mbarrier_expect(void* p, int64_t bytes, uint64_t pc) {
  Worker* w = worker;
  Mbarrier& barrier = at(p, ATOMIC, pc);
  barrier.transactions += bytes;
  turn(w, owner(w, here(p)), barrier);
}

TS_EXPORT void ts_mbarrier_landed(void* p, int64_t bytes, uint64_t pc) {
  Worker* w = worker;
  Mbarrier& barrier = at(p, ATOMIC, pc);
  if (w->launch->races) release_at(w, here(p));
  barrier.transactions -= bytes;
  turn(w, owner(w, here(p)), barrier);
}

TS_EXPORT int ts_mbarrier_passed(
    void* p, uint64_t state, int parity, int waits, int line, const char* file, uint64_t pc) {
  Worker* w = worker;
  Fiber* self = w->current;
  const Mbarrier& barrier = at(p, ATOMIC, pc);
  const uint64_t phase = parity ? state & 1 : state >> 63;
  if (barrier.phase == phase) {
    if (!waits) {
      ts_pause();
    } else {
      self->line = line;
      self->file = file;
      self->waits_at = here(p);
      self->state = AT_MBARRIER;
      leave(w, self);
    }
  }
  if (barrier.phase == phase) return 0;
  if (w->launch->races) acquire_at(w, here(p));
  return 1;
}

}  // extern "C"
