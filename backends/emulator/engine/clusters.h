// Blocks that run together: their barrier, and whose shared memory an address lies in.
#pragma once
#include "state.h"

namespace engine {

// The block of the running one's cluster whose shared memory `address` lies in, or null.
Block* owner(Worker* w, uint64_t address);
// A thread has come to its end: the others of its cluster do not wait for it.
void leave_cluster(Worker* w, Fiber* self);

}  // namespace engine
