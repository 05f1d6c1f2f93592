// Barriers in shared memory that count arrivals and the bytes of asynchronous copies.
#pragma once
#include "state.h"

namespace engine {

struct Mbarrier {
  uint64_t pending : 20, expected : 20;
  int64_t transactions : 23;
  uint64_t phase : 1;
};

// `bytes` that were expected at a barrier have come.
void complete(Worker* w, Block* block, uint64_t offset, uint64_t bytes);
// Threads that wait at such a barrier look again, where nothing else can run; false where that has been in vain.
bool wake(Worker* w);
// Says what the barrier lacks that a thread waits at.
void describe_wait(Worker* w, ts_report& report, const Fiber* fiber);

}  // namespace engine
