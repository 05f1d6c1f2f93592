// Stacks of fibers, and the shared memory of blocks with the arrays in it.
#pragma once
#include "state.h"

namespace engine {

char* take_stack(Worker* w);  // null where there is no memory
char* take_arena();           // ARENA bytes and as many states of theirs, all 0; null where there is no memory
void give_back(Worker* w);    // the stacks and arenas of a worker that has come to its end
void use_stacks_of(uint64_t bytes);

// The offset of a new array in a block's arena, NaN in every float type; 0 where no room is left.
uint64_t allocate(Block* block, const ts_site* site, uint64_t bytes, uint64_t align);
// Forgets the arrays of a block that has come to its end.
void clear(Worker* w, Block* block);

// The allocation of the device's heap that lies nearest to an address: where it begins, and its bytes; 0 and 0: none.
void nearest_in_heap(uint64_t address, uint64_t& start, uint64_t& bytes);
// Whether an access lies within what the device's heap has given out.
bool in_heap(uint64_t address, uint64_t size);

}  // namespace engine
