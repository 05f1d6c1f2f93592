#include "fibers.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "clusters.h"
#include "copies.h"
#include "mbarriers.h"
#include "memory.h"
#include "products.h"
#include "races.h"
#include "reports.h"

namespace engine {

__attribute__((tls_model("initial-exec"))) __thread Worker* worker = nullptr;

namespace {

// A thread that has ended counts as arrived wherever others wait for it.
void release_others(Worker* w, Fiber* self) {
  Block* block = self->block;
  const uint32_t base = self->number & ~31u, lane = self->number & 31;
  Warp& warp = block->warps[base / 32];
  warp.gone |= 1u << lane;
  if (block->arrived) pass_barrier(w, block);
  for (uint32_t bits = warp.waiting; bits; bits &= bits - 1) {
    const Fiber& fiber = block->fibers[base + static_cast<uint32_t>(__builtin_ctz(bits))];
    if (fiber.state == AT_WARP && fiber.mask >> lane & 1) meet(w, block, base, fiber.mask, fiber.combine);
  }
}

void fiber_main() {
  for (;;) {
    Worker* w = worker;
    Fiber* self = w->current;
    w->launch->entry(w->launch->arguments);
    settle(w);
    if (self->suspect.address) accuse(w, self->suspect);
    check_products(self);
    self->state = DONE;
    if (++self->block->done == w->launch->threads && w->launch->races) judge_stages(w, self->block);
    w->idle = w->quiet = 0;
    w->wakes = 0;
    if (!w->launch->options.strict) release_others(w, self);
    leave_cluster(w, self);
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

}  // namespace

void enter(Worker* w, Fiber* fiber) {
  w->current = fiber;
  w->stack_low = reinterpret_cast<uint64_t>(fiber->stack);
  if (w->block == fiber->block) return;
  w->block = fiber->block;
  w->shared_base = reinterpret_cast<uint64_t>(fiber->block->arena);
  w->shared_states = fiber->block->states;
}

bool equip(Worker* w, Fiber* fiber, char* stack) {
  if (!stack) return false;
  fiber->stack = stack;
  // Stacks start at different places within a page, else their tops would share few lines of the cache.
  const uint64_t colour = fiber->number % 32 * 128;
  prepare(fiber->context, stack, w->launch->options.stack_bytes - colour, fiber_main);
  fiber->started = true;
  return true;
}

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

void pass_barrier(Worker* w, Block* block) {
  const uint32_t gone = w->launch->options.strict ? 0 : block->done;
  if (!block->arrived || block->arrived + gone < w->launch->threads) return;
  const int kind = block->kind;
  block->result = kind == TS_SYNC_COUNT ? block->count : kind == TS_SYNC_AND ? block->all : block->any;
  block->arrived = 0;
  block->count = 0, block->all = 1, block->any = 0;
  ++block->released;
  ++block->moment;
  if (w->launch->races) share_at_barrier(w, block);
  w->scratch.clear();
  for (Fiber& fiber : block->fibers)
    if (fiber.state == AT_BARRIER) w->scratch.push_back(&fiber);
  arrange(w, w->scratch);
}

void meet(Worker* w, Block* block, uint32_t base, uint32_t mask, ts_combine combine) {
  Warp& warp = block->warps[base / 32];
  const uint32_t come = mask & warp.waiting;
  if (!warp.all_at(mask)) return;
  Fiber* const fibers = &block->fibers[base];
  void* lanes[32] = {};
  for (uint32_t bits = come; bits; bits &= bits - 1) {
    const Fiber& fiber = fibers[__builtin_ctz(bits)];
    if (fiber.mask != mask || fiber.combine != combine) return;
    lanes[__builtin_ctz(bits)] = fiber.offered;
  }
  if (combine) combine(lanes, mask);
  if (w->launch->races) {
    block->clocks[base / 32].meet(mask);
    reorder(w, block);
  }
  warp.waiting &= ~come;
  w->scratch.clear();
  for (uint32_t bits = come; bits; bits &= bits - 1) w->scratch.push_back(fibers + __builtin_ctz(bits));
  arrange(w, w->scratch);
}

void arrange(Worker* w, std::vector<Fiber*>& fibers, bool first) {
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
    first ? w->push_first(fiber) : w->push(fiber);
  }
}

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

void yield_now(Worker* w) {
  Fiber* self = w->current;
  w->push(self);
  leave(w, self);
}

void idle(Worker* w, uint64_t pc) {
  Launch* launch = w->launch;
  Fiber* self = w->current;
  ++w->idle;
  if (w->quiet % 1024 == 1023) land(w);  // a copy takes its time, and not for ever
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
    if (!launch->options.cooperative && w->idle % 4096 < 16 && w->idle > 4096 && launch->next < launch->clusters &&
        w->resident.size() < 64)
      w->wants_block = true;  // perhaps it waits for a block that has not begun
    yield_now(w);
  }
}

}  // namespace engine
