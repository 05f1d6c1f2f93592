#include "reports.h"

#include "clusters.h"
#include "mbarriers.h"
#include "memory.h"
#include "products.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace engine {

void place(ts_place& at, const Fiber* fiber, uint64_t pc, int access) {
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
  const State state = fiber->state;
  const bool barrier = state == AT_BARRIER || state == AT_NAMED || state == AT_CLUSTER || state == AT_MBARRIER;
  at.state = fiber->state == DONE ? 0 : barrier ? 1 : fiber->state == AT_WARP ? 2 : 3;
}

void stop() {
  Worker* w = worker;
  if (w->current) {
    change(w->current->context, w->main);
    __builtin_unreachable();
  }
}

void fault(const char* text, uint64_t pc) {
  fail(TS_FAULT, [&](ts_report& report) {
    place(report.here, worker->current, pc);
    std::strncpy(report.text, text, sizeof report.text - 1);
  });
}

namespace {

uint64_t distance(uint64_t address, uint64_t start, uint64_t bytes) {
  if (address < start) return start - address;
  return address >= start + bytes ? address - (start + bytes) + 1 : 0;
}

}  // namespace

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
  const Block* block = owner(w, address);
  if (!block) block = w->block;
  for (const Array& array : block->arrays) {
    if (array.bytes == 0) continue;
    const uint64_t start = reinterpret_cast<uint64_t>(block->arena) + array.offset;
    if (nearer(TS_SHARED, 0, start, array.bytes, array.site ? array.site->item : 1) && array.site) {
      std::strncpy(report.name, array.site->name, sizeof report.name - 1);
      std::memcpy(report.dims, array.site->dims, sizeof report.dims);
    }
  }
  uint64_t start, bytes;
  nearest_in_heap(address, start, bytes);
  if (start) nearer(TS_HEAP, 0, start, bytes, 1);
  if (best > uint64_t(1) << 32) report.region_kind = TS_NO_REGION;
}

void report_early(Worker* w, ts_report& report) {
  const Early& early = w->early;
  report.kind = TS_UNINITIALISED_SHARED;
  place(report.here, early.reader, early.pc, early.access);
  report.address = early.address;
  report.size = early.size;
  describe_nearest(w, report, early.address);
  if (!early.met) return;
  report.there = early.who;
  std::strncpy(report.text, "later", sizeof report.text - 1);
}

void refuse(Worker* w, ts_kind kind, uint64_t address, uint64_t size, int access, uint64_t pc, const char* text) {
  fail(kind, [&](ts_report& report) {
    place(report.here, w->current, pc, access);
    report.address = address;
    report.size = size;
    describe_nearest(w, report, address);
    std::strncpy(report.text, text, sizeof report.text - 1);
  });
}

__attribute__((noinline, cold)) void misaligned(
    Worker* w, uint64_t address, uint64_t size, int access, uint64_t alignment, uint64_t pc) {
  if (!w || !w->current) return;
  fail(TS_MISALIGNED, [&](ts_report& report) {
    place(report.here, w->current, pc, access);
    report.address = address;
    report.size = size;
    report.mask = static_cast<uint32_t>(alignment);
    describe_nearest(w, report, address);
  });
}

// Reports the first thread in `state`, if there is one, as waiting for ever, with what `say(report, block, fiber)`
// writes.
template <class Say>
bool deadlock_at(Worker* w, State state, Say say) {
  for (auto& block : w->resident) {
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != state) continue;
      fail(TS_DEADLOCK, [&](ts_report& report) {
        waits(report.here, &fiber);
        say(report, *block, fiber);
      });
      return true;
    }
  }
  return false;
}

void stuck(Worker* w) {
  w->current = nullptr;
  for (auto& block : w->resident) {
    for (Fiber& fiber : block->fibers) {
      if (fiber.state != AT_WARP) continue;
      const uint32_t base = fiber.number & ~31u;
      for (uint32_t lane = 0; lane < 32 && base + lane < block->fibers.size(); ++lane) {
        Fiber& other = block->fibers[base + lane];
        if (!(fiber.mask >> lane & 1) || &other == &fiber) continue;
        if (other.state == DONE && !w->launch->options.strict) continue;
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
  if (deadlock_at(w, AT_NAMED, [](ts_report& report, Block& block, const Fiber& fiber) {
        const Named& named = block.named[fiber.mask];
        std::snprintf(report.text, sizeof report.text, "waits at barrier %u for %u threads, of which %u have come",
                      fiber.mask, named.expected, named.arrived);
      }))
    return;
  if (deadlock_at(w, AT_PRODUCT, [](ts_report& report, Block&, Fiber& fiber) {
        std::snprintf(report.text, sizeof report.text,
                      "waits for a wgmma.mma_async that warp %u of its warpgroup has yet to begin",
                      missing_warp(&fiber) % 4);
      }))
    return;
  if (deadlock_at(w, AT_MBARRIER, [&](ts_report& report, Block&, Fiber& fiber) { describe_wait(w, report, &fiber); }))
    return;
  if (deadlock_at(w, AT_CLUSTER, [](ts_report& report, Block& block, const Fiber&) {
        std::snprintf(report.text, sizeof report.text,
                      "waits at the cluster's barrier, to which %u threads have yet to come", block.cluster->missing);
      }))
    return;
  for (auto& block : w->resident) {
    if (!block->arrived) continue;
    Fiber& fiber = block->fibers[block->first];
    for (Fiber& other : block->fibers) {
      if (other.state == AT_BARRIER || (other.state == DONE && !w->launch->options.strict)) continue;
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
      const auto is_gone = [&](const auto& other) { return other->number == gone; };
      while (std::any_of(w->resident.begin(), w->resident.end(), is_gone)) ++gone;
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

}  // namespace engine
