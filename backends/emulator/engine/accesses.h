// Checks of accesses to memory. What is found right here, without a call, is most of what a kernel does.
#pragma once
#include <cstring>

#include "reports.h"
#include "state.h"

#define TS_EXPORT __attribute__((visibility("default")))
#define TS_RETURN_ADDRESS engine::here(__builtin_extract_return_addr(__builtin_return_address(0)))

namespace engine {

inline uint64_t here(const void* address) { return reinterpret_cast<uint64_t>(address); }

// An access of any size and alignment: is it within shared memory, an argument or a global, and may it be?
void slow(Worker* w, uint64_t address, uint64_t size, int access, uint64_t pc);

// What is exchanged need not have been written: shared memory that lies there unwritten counts as written now.
void begun(Worker* w, uint64_t address, uint64_t size);

// Volatile accesses, which flags that threads wait for are made of. They race with plain ones only.
void polled(uint64_t address, uint64_t size, uint64_t pc);     // a read
void signalled(uint64_t address, uint64_t size, uint64_t pc);  // a write

struct Vector16 {
  uint64_t low, high;
  bool operator==(const Vector16& other) const { return low == other.low && high == other.high; }
};

// `aligned`: the compiler took the address for a multiple of the size, or of 8. GCC has asked already, whatever the
// type; clang does not ask where a whole struct is copied.
#if defined(__clang__)
constexpr bool ASKED = false;
#else
constexpr bool ASKED = true;
#endif
template <class Word, bool aligned = false>
inline __attribute__((always_inline)) void check(uint64_t address, int access, uint64_t pc) {
  Worker* w = worker;
  constexpr uint64_t alignment = sizeof(Word) < 8 ? sizeof(Word) : 8;
  if (aligned && !ASKED && __builtin_expect(address & (alignment - 1), 0))
    return misaligned(w, address, sizeof(Word), access, alignment, pc);
  if (__builtin_expect(w != nullptr, 1)) {
    const uint64_t offset = address - w->shared_base;
    if (__builtin_expect(offset < w->shared_bytes, 1)) {
      Word state, all;
      std::memset(&all, WRITTEN, sizeof all);
      std::memcpy(&state, w->shared_states + offset, sizeof state);
      if (__builtin_expect(state == all, 1)) return;
    } else {
      const Range& known = w->sites[(pc ^ pc >> 9) & (SITES - 1)];
      if (__builtin_expect(address - known.start <= known.bytes - sizeof(Word) && known.bytes, 1)) return;
      if (address - w->stack_low <= w->stack_bytes - sizeof(Word)) return;
    }
  }
  slow(w, address, sizeof(Word), access, pc);
}

}  // namespace engine
