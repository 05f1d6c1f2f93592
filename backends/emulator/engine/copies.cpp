#include "copies.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "accesses.h"
#include "clusters.h"
#include "mbarriers.h"
#include "narrow.h"
#include "races.h"
#include "reports.h"
#include "stages.h"

namespace engine {
namespace {

// The rows of a box: `row(address, first, count, skipped)` for each, where elements from the `first` on, `count` of
// them, lie in the array from `address` on, `map.steps[0]` elements apart; count 0: none does.
template <class Row>
void rows_of(const ts_tensor_map& map, const int32_t* at, Row row) {
  int64_t counts[5] = {1, 1, 1, 1, 1}, index[5] = {};
  for (int axis = 0; axis < map.rank; ++axis) counts[axis] = (map.box[axis] + map.steps[axis] - 1) / map.steps[axis];
  const int64_t size = map.sizes[0], step = map.steps[0], start = at[0];
  const int64_t first = std::min(counts[0], start < 0 ? (-start + step - 1) / step : 0);
  const int64_t last = std::max(first, std::min(counts[0], start < size ? (size - start + step - 1) / step : 0));
  for (;;) {
    uint64_t address = map.address;
    bool inside = first < last;
    for (int axis = 1; axis < map.rank; ++axis) {
      const int64_t place = at[axis] + index[axis] * map.steps[axis];
      inside &= place >= 0 && place < static_cast<int64_t>(map.sizes[axis]);
      address += static_cast<uint64_t>(place) * map.strides[axis - 1];
    }
    address += static_cast<uint64_t>((start + first * step) * map.item);
    row(address, first, inside ? last - first : 0);
    int axis = 1;
    while (axis < map.rank && ++index[axis] == counts[axis]) index[axis++] = 0;
    if (axis >= map.rank) return;
  }
}

uint64_t row_bytes(const ts_tensor_map& map) {
  return static_cast<uint64_t>((map.box[0] + map.steps[0] - 1) / map.steps[0]) * map.item;
}

uint64_t box_bytes(const ts_tensor_map& map) {
  uint64_t bytes = row_bytes(map);
  for (int axis = 1; axis < map.rank; ++axis)
    bytes *= static_cast<uint64_t>((map.box[axis] + map.steps[axis] - 1) / map.steps[axis]);
  return bytes;
}

template <class T>
void reduce_as(char* to, const char* from, uint64_t bytes, int reduction) {
  for (uint64_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T old, value;
    std::memcpy(&old, to + i, sizeof(T));
    std::memcpy(&value, from + i, sizeof(T));
    if (reduction == TS_ADD) value = static_cast<T>(old + value);
    if (reduction == TS_MIN) value = old < value ? old : value;
    if (reduction == TS_MAX) value = old > value ? old : value;
    if constexpr (std::is_integral<T>::value) {
      if (reduction == TS_AND) value = old & value;
      if (reduction == TS_OR) value = old | value;
      if (reduction == TS_XOR) value = old ^ value;
    }
    std::memcpy(to + i, &value, sizeof(T));
  }
}

void reduce_narrow(char* to, const char* from, uint64_t bytes, int reduction, bool brain) {
  for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
    uint16_t bits[2];
    std::memcpy(&bits[0], to + i, 2);
    std::memcpy(&bits[1], from + i, 2);
    float old = widen(bits[0], brain), value = widen(bits[1], brain);
    if (reduction == TS_ADD) value = old + value;
    if (reduction == TS_MIN) value = old < value ? old : value;
    if (reduction == TS_MAX) value = old > value ? old : value;
    bits[0] = brain ? to_brain(value) : to_half(value);
    std::memcpy(to + i, &bits[0], 2);
  }
}

// Blocks on several cores may add to the same place.
void reduce(char* to, const char* from, uint64_t bytes, int reduction, int type) {
  static std::mutex one;
  std::lock_guard<std::mutex> hold(one);
  switch (type) {
    case TS_F16: case TS_BF16: return reduce_narrow(to, from, bytes, reduction, type == TS_BF16);
    case TS_F32: case TS_TF32: return reduce_as<float>(to, from, bytes, reduction);
    case TS_F64: return reduce_as<double>(to, from, bytes, reduction);
    case TS_S32: return reduce_as<int32_t>(to, from, bytes, reduction);
    case TS_U32: return reduce_as<uint32_t>(to, from, bytes, reduction);
    case TS_S64: return reduce_as<int64_t>(to, from, bytes, reduction);
    default: return reduce_as<uint64_t>(to, from, bytes, reduction);
  }
}

void put(const Transfer& t, char* to, const char* from, uint64_t bytes, int type) {
  if (t.reduction == TS_REPLACE) std::memcpy(to, from, bytes);
  else reduce(to, from, bytes, t.reduction, type);
}

void load(Worker* w, const Transfer& t) {
  std::vector<char> bytes(t.bytes);
  if (t.tensor) {
    const ts_tensor_map& map = t.map;
    const uint64_t row = row_bytes(map);
    char* next = bytes.data();
    std::memset(next, map.fill ? 0xff : 0, t.bytes);
    rows_of(map, t.at, [&](uint64_t address, int64_t first, int64_t count) {
      if (map.steps[0] == 1) {
        if (count)
          std::memcpy(next + first * map.item, reinterpret_cast<void*>(address), static_cast<size_t>(count * map.item));
      } else {
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(next + (first + i) * map.item,
                      reinterpret_cast<char*>(address) + i * map.steps[0] * map.item, map.item);
      }
      next += row;
    });
  } else {
    std::memcpy(bytes.data(), t.global, t.bytes);
  }
  const int swizzle = t.tensor ? t.map.swizzle : 0;
  const auto& blocks = t.block->cluster->blocks;
  for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
    if (!(t.blocks >> rank & 1)) continue;
    Block* block = blocks[rank];
    for (uint64_t i = 0; i < t.bytes; i += 16) {
      const uint64_t at = swizzled(t.offset + i, swizzle);
      std::memcpy(block->arena + at, bytes.data() + i, 16);
      std::memset(block->states + at, WRITTEN, 16);
    }
    if (w->launch->races) {
      shadow::Knowledge& out = block->at[here(block->arena) + t.barrier];
      shadow::Knowledge::raise(out.threads, t.thread, t.fences);
    }
    complete(w, block, t.barrier, t.bytes);
  }
}

// What a store takes of shared memory.
void take(Transfer& t) {
  if (t.read) return;
  if (worker->unread) --worker->unread;
  t.read = true;
  t.held.resize(t.bytes);
  const int swizzle = t.tensor ? t.map.swizzle : 0;
  for (uint64_t i = 0; i < t.bytes; i += 16)
    std::memcpy(t.held.data() + i, t.block->arena + swizzled(t.offset + i, swizzle), 16);
}

void store(Transfer& t) {
  take(t);
  if (!t.tensor) return put(t, t.global, t.held.data(), t.bytes, t.type);
  const ts_tensor_map& map = t.map;
  const char* next = t.held.data();
  rows_of(map, t.at, [&](uint64_t address, int64_t first, int64_t count) {
    char* to = reinterpret_cast<char*>(address);
    if (map.steps[0] == 1) {
      if (count) put(t, to, next + first * map.item, static_cast<uint64_t>(count * map.item), map.type);
    } else {
      for (int64_t i = 0; i < count; ++i)
        put(t, to + i * map.steps[0] * map.item, next + (first + i) * map.item, map.item, map.type);
    }
    next += row_bytes(map);
  });
}

const ts_tensor_map& known(const void* map, int rank, uint64_t pc) {
  const ts_tensor_map& known = *static_cast<const ts_tensor_map*>(map);
  if (here(map) % 64) misaligned(worker, here(map), 128, READ, 64, pc);
  if (known.magic != TENSOR_MAP) fault("a tensor map that the host has not encoded: pass an emulator.TensorMap", pc);
  if (known.rank != rank) {
    char text[100];
    std::snprintf(text, sizeof text, "a copy with %d coordinates by a tensor map of %d axes", rank, known.rank);
    fault(text, pc);
  }
  return known;
}

// What an H200 stops at with an illegal instruction: a box that begins at no 16 bytes of a row, and a store of one that
// begins before the array, which a load may.
void check_start(const ts_tensor_map& map, const int32_t* at, bool stores, uint64_t pc) {
  char text[120];
  if (static_cast<int64_t>(at[0]) * map.item % 16) {
    std::snprintf(text, sizeof text, "a copy whose first coordinate, %d, is no multiple of 16 bytes", at[0]);
    fault(text, pc);
  }
  for (int axis = 0; stores && axis < map.rank; ++axis) {
    if (at[axis] >= 0) continue;
    std::snprintf(text, sizeof text, "a copy from shared memory to the negative coordinate %d", at[axis]);
    fault(text, pc);
  }
}

// What an access of the copy engine to global memory is checked as.
void check_rows(Worker* w, const Transfer& t, int access, uint64_t pc) {
  rows_of(t.map, t.at, [&](uint64_t address, int64_t, int64_t count) {
    if (count) slow(w, address, static_cast<uint64_t>(((count - 1) * t.map.steps[0] + 1) * t.map.item), access, pc);
  });
}

void begin_load(Transfer& t, void* to, void* barrier, uint32_t blocks, uint64_t alignment, uint64_t pc) {
  Worker* w = worker;
  Block* block = owner(w, here(to));
  if (here(to) & (alignment - 1)) misaligned(w, here(to), t.bytes, WRITE, alignment, pc);
  if (!block) refuse(w, TS_OUT_OF_BOUNDS, here(to), t.bytes, WRITE, pc);
  Block* counts = owner(w, here(barrier));
  if (!counts) refuse(w, TS_OUT_OF_BOUNDS, here(barrier), 8, ATOMIC, pc);
  if (counts != block) fault("a copy to one block of the cluster that counts at a barrier of another", pc);
  t.block = w->block;
  t.offset = here(to) - here(block->arena);
  t.barrier = here(barrier) - here(block->arena);
  t.blocks = blocks ? blocks : 1u << block->rank;
  const auto& all = w->block->cluster->blocks;
  if (all.size() < 32 && t.blocks >> all.size()) fault("a copy to a block that the cluster does not have", pc);
  const int swizzle = t.tensor ? t.map.swizzle : 0;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (!(t.blocks >> rank & 1)) continue;
    char* arena = all[rank]->arena;
    if (here(barrier) & 7) misaligned(w, here(barrier), 8, ATOMIC, 8, pc);
    slow(w, here(arena) + t.barrier, 8, ATOMIC, pc);
    w->copies = true;
    slow(w, here(arena) + t.offset, t.bytes, WRITE, pc);
    w->copies = false;
    for (uint64_t i = 0; i < t.bytes; i += 16) {
      const uint64_t at = swizzled(t.offset + i, swizzle);
      std::memset(arena + at, 0xff, 16);
      std::memset(all[rank]->states + at, IN_FLIGHT, 16);
    }
  }
  if (w->current->fences < 0x7fff) ++w->current->fences;  // what waits at the barrier comes after the copy too
  if (w->launch->races) reorder(w, w->block);
  t.thread = static_cast<uint32_t>(w->block->number << 10 | w->current->number) + 1;
  t.fences = w->current->fences;
  w->transfers.push_back(std::move(t));
}

// Of a box that is stored, what lies outside of the array need not have been written.
void check_taken(Worker* w, const Transfer& t, uint64_t pc) {
  uint64_t row = 0;
  rows_of(t.map, t.at, [&](uint64_t, int64_t first, int64_t count) {
    const uint64_t low = row + static_cast<uint64_t>(first * t.map.item) / 16 * 16;
    const uint64_t high = row + static_cast<uint64_t>((first + count) * t.map.item);
    for (uint64_t at = low; count && at < high; at += 16) {
      const uint64_t address = here(w->block->arena) + swizzled(t.offset + at, t.map.swizzle);
      slow(w, address, 16, READ, pc);
      if (w->launch->races) look_for_proxies(w, address, 16, pc);
    }
    row += row_bytes(t.map);
  });
}

void begin_store(Transfer& t, const void* from, uint64_t alignment, uint64_t pc) {
  Worker* w = worker;
  Fiber* self = w->current;
  const uint64_t offset = here(from) - here(w->block->arena);
  if (here(from) & (alignment - 1)) misaligned(w, here(from), t.bytes, READ, alignment, pc);
  if (offset >= ARENA) refuse(w, TS_OUT_OF_BOUNDS, here(from), t.bytes, READ, pc);
  t.block = w->block;
  t.offset = offset;
  if (t.tensor) {
    check_taken(w, t, pc);
    if (w->block->stages)  // a box outside of the array is taken too, and goes nowhere
      for (uint64_t at = 0; at < t.bytes; at += 16) take_stages(w->block, swizzled(offset + at, t.map.swizzle), 16);
  } else {
    slow(w, here(from), t.bytes, READ, pc);
    if (w->launch->races) look_for_proxies(w, here(from), t.bytes, pc);
  }
  t.group = self->store_groups;
  ++w->unread;
  self->stores.push_back(std::move(t));
}

}  // namespace

bool land(Worker* w) {
  // Stores are read as late as they may be, when they are waited for, but for the first order: there they are quick.
  if (w->unread && w->launch->options.order == 0)
    for (auto& block : w->resident)
      for (Fiber& fiber : block->fibers)
        for (Transfer& t : fiber.stores) take(t);
  const size_t count = w->transfers.size();
  if (!count) return false;
  size_t chosen = 0;
  if (w->launch->options.order == 1) chosen = count - 1;
  if (w->launch->options.order == 2) {
    w->random = mix(w->random);
    chosen = w->random % count;
  }
  const Transfer t = std::move(w->transfers[chosen]);
  w->transfers.erase(w->transfers.begin() + static_cast<ptrdiff_t>(chosen));
  load(w, t);
  return true;
}

void finish_stores(Block* block) {
  for (Fiber& fiber : block->fibers) {
    for (Transfer& t : fiber.stores) store(t);
    fiber.stores.clear();
  }
}

}  // namespace engine

using namespace engine;

extern "C" {

TS_EXPORT void ts_tensor_load(
    void* to, const void* map, const int32_t* at, int rank, void* barrier, uint32_t blocks, uint64_t pc) {
  Transfer t;
  t.tensor = true;
  t.map = known(map, rank, pc);
  check_start(t.map, at, false, pc);
  std::copy(at, at + rank, t.at);
  t.bytes = box_bytes(t.map);
  check_rows(worker, t, READ, pc);
  begin_load(t, to, barrier, blocks, 128, pc);
}

TS_EXPORT void ts_tensor_store(
    const void* map, const int32_t* at, int rank, const void* from, int reduction, uint64_t pc) {
  Transfer t;
  t.tensor = true;
  t.map = known(map, rank, pc);
  check_start(t.map, at, true, pc);
  std::copy(at, at + rank, t.at);
  t.bytes = box_bytes(t.map);
  t.reduction = reduction;
  check_rows(worker, t, reduction == TS_REPLACE ? WRITE : ATOMIC, pc);
  begin_store(t, from, 128, pc);
}

TS_EXPORT void ts_bulk_load(void* to, const void* from, uint32_t bytes, void* barrier, uint32_t blocks, uint64_t pc) {
  Transfer t;
  if (bytes % 16) fault("a bulk copy of a number of bytes that is no multiple of 16", pc);
  t.global = const_cast<char*>(static_cast<const char*>(from));
  t.bytes = bytes;
  if (here(from) & 15) misaligned(worker, here(from), bytes, READ, 16, pc);
  if (!bytes) return;
  slow(worker, here(from), bytes, READ, pc);
  begin_load(t, to, barrier, blocks, 16, pc);
}

TS_EXPORT void ts_bulk_store(void* to, const void* from, uint32_t bytes, int reduction, int type, uint64_t pc) {
  Transfer t;
  if (bytes % 16) fault("a bulk copy of a number of bytes that is no multiple of 16", pc);
  t.global = static_cast<char*>(to);
  t.bytes = bytes;
  t.reduction = reduction;
  t.type = type;
  if (here(to) & 15) misaligned(worker, here(to), bytes, WRITE, 16, pc);
  if (!bytes) return;
  slow(worker, here(to), bytes, reduction == TS_REPLACE ? WRITE : ATOMIC, pc);
  begin_store(t, from, 16, pc);
}

TS_EXPORT void ts_bulk_commit() { ++worker->current->store_groups; }

TS_EXPORT void ts_bulk_wait(int pending, int read) {
  Fiber* self = worker->current;
  size_t done = 0;
  for (; done < self->stores.size(); ++done) {
    Transfer& t = self->stores[done];
    if (t.group + static_cast<uint32_t>(pending) >= self->store_groups) break;
    if (read) take(t);
    else store(t);
  }
  if (!read) self->stores.erase(self->stores.begin(), self->stores.begin() + static_cast<ptrdiff_t>(done));
}

}  // extern "C"
