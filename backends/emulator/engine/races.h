// Looks for two accesses to the same bytes that conflict and that nothing orders.
#pragma once
#include "state.h"

namespace engine {

// Something about the order of what threads of the block do has changed.
inline void reorder(Worker* w, Block* block) { block->state = ++w->launch->races->states; }
// Whether a read need not be remembered: where a granule is full of reads that are all needed, another one would only
// displace one of them. Those of several blocks conflict with every write, unless what a block knows of others orders
// them. Some reads are taken nevertheless, and within a block those of a warp's first and last lane, so that of many
// granules in some there is every reader.
inline bool spared(Worker* w, uint64_t address, uint64_t size) {
  Races* races = w->launch->races;
  const Block* block = w->block;
  const bool several = !block->known && !w->current->known;
  const bool inner = (w->current->number + 1) % 32 > 1;
  const uint32_t state = inner ? block->state : shadow::NEVER;
  if (!races->pages.recent(address).is_full(address, size, state, several) || w->copies) return false;
  races->sample = races->sample * 1664525 + 1013904223;
  return races->sample >> 28;
}
// Compares a plain or atomic access with what is remembered of these bytes, and remembers it.
void look_for_races(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc);
// The copy engine reads shared memory of the block that runs: has every thread that stored there, or the one that runs,
// made a proxy fence since? One that was made between the same two barriers counts, whichever came first.
void look_for_proxies(Worker* w, uint64_t address, uint64_t size, uint64_t pc);
// An atomic, or an access to a volatile: takes what others released at this address, and releases what was fenced.
void synchronise(Worker* w, uint64_t address, bool acquires, bool releases);
// A barrier in shared memory, or one of a number: what the thread has done is released there, fenced or not.
void release_at(Worker* w, uint64_t address);
// A phase of such a barrier is over: who waits for it, `acquire_at`, knows what was released until then.
void pass_at(Block* block, uint64_t address);
void acquire_at(Worker* w, uint64_t address);
// A phase of a numbered barrier is over: those who wait know what it released, and no more, whatever comes to the
// barrier before they go on; the next phase begins with nothing.
void hand_over(Worker* w, Block* block, uint64_t address, const std::vector<Fiber*>& waiting);
// Compares what was stored with what another lane of the warp had stored there, now that it is in memory.
void settle_now(Worker* w);
inline void settle(Worker* w) {
  if (w->repeated.address) settle_now(w);
}
// All threads of a block know at a barrier what each of them knew, and what each has fenced.
void share_at_barrier(Worker* w, Block* block);
// All threads of a cluster know at its barrier what each of them knew.
void share_in_cluster(Worker* w, Cluster* cluster);
// Reports the two accesses of `suspect` as a race.
void accuse(Worker* w, const Fiber::Suspect& suspect, const char* lacks = "");

}  // namespace engine
