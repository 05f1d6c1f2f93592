// Looks for a stage of shared memory that is filled again, or left, before anybody has read it, while what was read
// from an older one is read once more: two buffers, of which the one that is read does not change with the one that is
// filled.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace engine {

struct Worker;
struct Block;

// What one instruction has stored in a block between two barriers.
struct Stage {
  uint32_t pc = 0, moment = 0;        // within the kernel's library; of the block
  uint32_t granules = 0, left = 0;    // of 4 bytes that were stored, and that still hold it
  uint32_t array = 0;
  uint32_t read_at = ~0u, moments = 0;         // the last moment, and at how many
  uint32_t reader = 0, thread = 0;    // the first one at that moment: its instruction, and its number
  uint64_t readers = 0, before = 0;   // instructions that read it at that moment, and before, a bit each
  bool read = false, shared = false;  // by another thread than had stored it
  bool mixed = false;                 // another instruction has stored over it
};

// What is known of the stages of one instruction.
struct Filler {
  uint32_t stage = 0;      // its last
  uint32_t stages = 0;     // how many
  uint32_t lost = 0;       // that it stored over before anybody had read them
  uint32_t stale = 0;      // of them, while an older stage of the same array was read once more
  uint32_t own = 0;        // of these, where that was one of its own
  uint32_t first_lost = 0, last_read = 0;      // by their numbers
  uint32_t reader = 0, thread = 0, again = 0;  // who read once more: pc, number; and what: the pc that stored it
};

struct Stages {
  std::vector<Stage> all;                          // the first is none; the later, the younger
  struct Granule {                                 // of shared memory
    uint32_t stage = 0;
    uint32_t told = 0;  // by what instruction at what moment it was read, where another such read says nothing new
    uint16_t thread = 0;                           // that stored it
  };
  std::vector<Granule> granules;
  std::unordered_map<uint32_t, Filler> fillers;    // by pc
  struct Again {
    uint32_t younger_than = 0;  // stages that were there when it happened
    uint32_t stage = 0, reader = 0, thread = 0;
  };
  std::vector<Again> again;                        // of each array: the last time that a stage was read once more
  struct Recent {
    uint32_t pc = 0, moment = 0, stage = 0;
  } recent[64];

  void clear();
};

// What a granule keeps of a read by the instruction at `pc`.
inline uint32_t telling(uint64_t pc, uint32_t moment) {
  return static_cast<uint32_t>(pc) + (moment + 1) * 0x9e3779b1u;
}
// A plain or atomic access to shared memory of `block`.
void follow_stages(Worker* w, Block* block, uint64_t offset, uint64_t size, int access, uint64_t pc);
// Somebody has no more use for what lies there, though nothing of it went anywhere.
void take_stages(Block* block, uint64_t offset, uint64_t size);
// All threads of the block have come to their end.
void judge_stages(Worker* w, Block* block);

}  // namespace engine
