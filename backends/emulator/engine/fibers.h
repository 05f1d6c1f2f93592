// Threads as fibers: each has a stack of its own, and one of them runs until it waits for others. See docs/emulator.md.
#pragma once
#include "state.h"

namespace engine {

// Makes a fiber ready to start on `stack`; false where that is null.
bool equip(Worker* w, Fiber* fiber, char* stack);
// Makes `fiber` the one that runs.
void enter(Worker* w, Fiber* fiber);
// Where the thread that runs goes on to another, which runs in its place until something comes back to it.
void leave(Worker* w, Fiber* self);
// Lets the other threads run first.
void yield_now(Worker* w);
// A thread looked at memory that has not changed: one turn of a loop that waits.
void idle(Worker* w, uint64_t pc);
// Makes `fibers` ready to run, in the order of the launch; `first`: before those that are ready already.
void arrange(Worker* w, std::vector<Fiber*>& fibers, bool first = false);
// Lets a block's threads go on if all of them are at its barrier, or those that are not have ended.
void pass_barrier(Worker* w, Block* block);
// Lets the lanes in `mask` of the warp that begins at thread `base` go on if all are at the same operation, or have
// ended.
void meet(Worker* w, Block* block, uint32_t base, uint32_t mask, ts_combine combine);
// Nothing else can run: the lanes of a warp that came to one place together are active there.
bool gather(Worker* w);

}  // namespace engine
