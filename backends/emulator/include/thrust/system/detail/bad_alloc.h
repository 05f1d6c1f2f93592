// In place of Thrust's own, whose text is a std::string: device code has none, nor exceptions. Where a temporary buffer
// cannot be had, a GPU prints a message and stops, and so does this.
#pragma once
#include <thrust/detail/config.h>

extern "C" {
__attribute__((weak, visibility("hidden"))) void* __cxa_allocate_exception(decltype(sizeof(0))) noexcept {
  ts_fault("Thrust has no memory for a temporary buffer", TS_PC);
  __builtin_unreachable();
}
__attribute__((weak, visibility("hidden"))) void __cxa_free_exception(void*) noexcept {}
__attribute__((weak, visibility("hidden"), noreturn)) void __cxa_throw(void*, void*, void (*)(void*)) {
  __builtin_trap();
}
}

THRUST_NAMESPACE_BEGIN
namespace system::detail {
class bad_alloc {
 public:
  template <typename Message> explicit bad_alloc(const Message&) {}
};
}  // namespace system::detail
THRUST_NAMESPACE_END
