// Findings: the first of a launch is written to its report, and the thread that makes it never goes on.
#pragma once
#include <mutex>

#include "state.h"

namespace engine {

// Describes where and who `fiber` is, in the middle of an access at `pc`.
void place(ts_place& at, const Fiber* fiber, uint64_t pc = 0, int access = READ);
// Describes what `fiber` waits for.
void waits(ts_place& at, const Fiber* fiber);
// Leaves the thread that runs for good.
void stop();
// The argument, shared array or global that is nearest to `address`.
void describe_nearest(Worker* w, ts_report& report, uint64_t address);

// The finding of what was read too early, which comes before all others.
void report_early(Worker* w, ts_report& report);

// `fill` writes the report, if no other finding has.
template <class Fill>
__attribute__((cold, noinline)) void fail(ts_kind kind, Fill fill) {
  Launch* launch = worker->launch;
  {
    std::lock_guard<std::mutex> hold(launch->lock);
    if (!launch->failed) {
      launch->report->kind = kind;
      worker->early.block ? report_early(worker, *launch->report) : fill(*launch->report);
      launch->failed = true;
    }
  }
  stop();
}

void fault(const char* text, uint64_t pc);
void refuse(Worker* w, ts_kind kind, uint64_t address, uint64_t size, int access, uint64_t pc, const char* text = "");
void misaligned(Worker* w, uint64_t address, uint64_t size, int access, uint64_t alignment, uint64_t pc);
// Nothing can run, and some threads have not come to their end: says why.
void stuck(Worker* w);

}  // namespace engine
