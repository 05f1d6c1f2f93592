// What `-fsanitize=thread` calls before every access that may leave the thread's own variables.
#include "accesses.h"

using namespace engine;

namespace engine {

// `act`, an atomic operation on `p`, after what its order has to come before it and before what has to come after.
template <class T, class Act>
T update(volatile T* p, int order, uint64_t pc, Act act) {
  ts_check(const_cast<const T*>(p), sizeof(T), ATOMIC, sizeof(T), pc);
  if (order >= 3) ts_fence();
  const T out = act();
  if (order && order != 3) ts_fence();
  ts_atomic_done(1, pc);
  return out;
}
template <class T>
int swapped(volatile T* p, T* expected, T value, int order, uint64_t pc) {
  ts_check(const_cast<const T*>(p), sizeof(T), ATOMIC, sizeof(T), pc);
  if (order >= 3) ts_fence();
  const bool same = __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  if (order && order != 3) ts_fence();
  ts_atomic_done(same, pc);
  return same;
}

}  // namespace engine

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
// Atomics of C++ (std::atomic, cuda::atomic_ref). Their orders: 0 relaxed, 1 consume, 2 acquire, 3 release, then both.
#define TS_ATOMIC_UPDATE(bits, name, builtin)                                                 \
  TS_EXPORT uint##bits##_t __tsan_atomic##bits##_##name(                                      \
      volatile uint##bits##_t* p, uint##bits##_t value, int order) {                          \
    return engine::update<uint##bits##_t>(                                                    \
        p, order, TS_RETURN_ADDRESS, [=] { return builtin(p, value, __ATOMIC_SEQ_CST); });    \
  }
#define TS_ATOMICS(bits)                                                                                         \
  TS_EXPORT uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* p, int order) {             \
    polled(here(const_cast<const uint##bits##_t*>(p)), bits / 8, TS_RETURN_ADDRESS);                             \
    const uint##bits##_t out = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                             \
    if (order) ts_fence();                                                                                       \
    return out;                                                                                                  \
  }                                                                                                              \
  TS_EXPORT void __tsan_atomic##bits##_store(volatile uint##bits##_t* p, uint##bits##_t value, int order) {      \
    if (order) ts_fence();                                                                                       \
    signalled(here(const_cast<uint##bits##_t*>(p)), bits / 8, TS_RETURN_ADDRESS);                                \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                                \
  }                                                                                                              \
  TS_ATOMIC_UPDATE(bits, exchange, __atomic_exchange_n)                                                          \
  TS_ATOMIC_UPDATE(bits, fetch_add, __atomic_fetch_add)                                                          \
  TS_ATOMIC_UPDATE(bits, fetch_sub, __atomic_fetch_sub)                                                          \
  TS_ATOMIC_UPDATE(bits, fetch_and, __atomic_fetch_and)                                                          \
  TS_ATOMIC_UPDATE(bits, fetch_or, __atomic_fetch_or)                                                            \
  TS_ATOMIC_UPDATE(bits, fetch_xor, __atomic_fetch_xor)                                                          \
  TS_EXPORT int __tsan_atomic##bits##_compare_exchange_strong(                                                   \
      volatile uint##bits##_t* p, uint##bits##_t* expected, uint##bits##_t value, int order, int) {              \
    return engine::swapped(p, expected, value, order, TS_RETURN_ADDRESS);                                        \
  }                                                                                                              \
  TS_EXPORT int __tsan_atomic##bits##_compare_exchange_weak(                                                     \
      volatile uint##bits##_t* p, uint##bits##_t* expected, uint##bits##_t value, int order, int) {              \
    return engine::swapped(p, expected, value, order, TS_RETURN_ADDRESS);                                        \
  }
TS_ATOMICS(8)
TS_ATOMICS(16)
TS_ATOMICS(32)
TS_ATOMICS(64)
TS_EXPORT void __tsan_atomic_thread_fence(int) { ts_fence(); }
TS_EXPORT void __tsan_atomic_signal_fence(int) {}

TS_EXPORT void __tsan_init() {}
TS_EXPORT void __tsan_vptr_update(void**, void*) {}
TS_EXPORT void __tsan_vptr_read(void**) {}
TS_EXPORT void __tsan_func_entry(void*) {}
TS_EXPORT void __tsan_func_exit() {}

}  // extern "C"
