// The arrive-wait barrier primitives.
#pragma once
typedef uint64_t __mbarrier_t;
typedef uint64_t __mbarrier_token_t;
inline uint32_t __mbarrier_maximum_count() { return (1 << 20) - 1; }
inline void __mbarrier_init(__mbarrier_t* p, uint32_t count) {
  touchstone::ptx::mbarrier_init(reinterpret_cast<char*>(p), count);
}
inline void __mbarrier_inval(__mbarrier_t*) {}
inline __mbarrier_token_t __mbarrier_arrive(__mbarrier_t* p) {
  return touchstone::ptx::mbarrier_arrive(reinterpret_cast<char*>(p), 1, 0);
}
inline bool __mbarrier_test_wait(__mbarrier_t* p, __mbarrier_token_t token) {
  return touchstone::ptx::mbarrier_passed(reinterpret_cast<char*>(p), token, false);
}
