// The copy engine: bulk copies between global and shared memory, of boxes of an array or of bytes in a row.
#pragma once
#include "state.h"

namespace engine {

constexpr uint64_t TENSOR_MAP = 0x70614d726f736e65;  // marks the bytes of a ts_tensor_map

// The place of an address after a swizzle of `bytes` (0, 32, 64 or 128): its 16 bytes change places by the row of 128.
inline uint64_t swizzled(uint64_t address, int bytes) {
  return address ^ (address >> 7 & static_cast<uint64_t>(bytes / 16 - (bytes ? 1 : 0))) << 4;
}

// Lets one copy to shared memory come to its end, in the order of the launch; false where none is under way.
bool land(Worker* w);
// The stores of a block that has come to its end.
void finish_stores(Block* block);

}  // namespace engine
