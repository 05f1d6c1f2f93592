// What `-fsanitize=thread` calls before every access that may leave the thread's own variables.
#include "accesses.h"

using namespace engine;

extern "C" {

#define TS_ACCESS(bytes, Word)                                                                                        \
  TS_EXPORT void __tsan_read##bytes(void* p) { check<Word, true>(here(p), READ, TS_RETURN_ADDRESS); }                 \
  TS_EXPORT void __tsan_write##bytes(void* p) { check<Word, true>(here(p), WRITE, TS_RETURN_ADDRESS); }               \
  TS_EXPORT void __tsan_unaligned_read##bytes(void* p) { check<Word>(here(p), READ, TS_RETURN_ADDRESS); }             \
  TS_EXPORT void __tsan_unaligned_write##bytes(void* p) { check<Word>(here(p), WRITE, TS_RETURN_ADDRESS); }           \
  TS_EXPORT void __tsan_volatile_read##bytes(void* p) { polled(here(p), bytes, TS_RETURN_ADDRESS); }                  \
  TS_EXPORT void __tsan_volatile_write##bytes(void* p) { signalled(here(p), bytes, TS_RETURN_ADDRESS); }               \
  TS_EXPORT void __tsan_unaligned_volatile_read##bytes(void* p) { polled(here(p), bytes, TS_RETURN_ADDRESS); }        \
  TS_EXPORT void __tsan_unaligned_volatile_write##bytes(void* p) { signalled(here(p), bytes, TS_RETURN_ADDRESS); }

TS_ACCESS(1, uint8_t)
TS_ACCESS(2, uint16_t)
TS_ACCESS(4, uint32_t)
TS_ACCESS(8, uint64_t)
TS_ACCESS(16, Vector16)

TS_EXPORT void __tsan_read_range(void* p, unsigned long size) { slow(worker, here(p), size, READ, TS_RETURN_ADDRESS); }
TS_EXPORT void __tsan_write_range(void* p, unsigned long size) {
  slow(worker, here(p), size, WRITE, TS_RETURN_ADDRESS);
}

// clang's, for what GCC reads and writes in line.
TS_EXPORT void* __tsan_memcpy(void* to, const void* from, unsigned long size) {
  if (size) {
    slow(worker, reinterpret_cast<uint64_t>(from), size, READ, TS_RETURN_ADDRESS);
    slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  }
  return std::memcpy(to, from, size);
}
TS_EXPORT void* __tsan_memmove(void* to, const void* from, unsigned long size) {
  if (size) {
    slow(worker, reinterpret_cast<uint64_t>(from), size, READ, TS_RETURN_ADDRESS);
    slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  }
  return std::memmove(to, from, size);
}
TS_EXPORT void* __tsan_memset(void* to, int value, unsigned long size) {
  if (size) slow(worker, here(to), size, WRITE, TS_RETURN_ADDRESS);
  return std::memset(to, value, size);
}
TS_EXPORT void __tsan_init() {}
TS_EXPORT void __tsan_vptr_update(void**, void*) {}
TS_EXPORT void __tsan_vptr_read(void**) {}
TS_EXPORT void __tsan_func_entry(void*) {}
TS_EXPORT void __tsan_func_exit() {}

}  // extern "C"
