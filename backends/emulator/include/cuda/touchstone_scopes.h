// Words that cuda::barrier and cuda::pipeline share.
#pragma once
namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
// A size that is a multiple of an alignment.
template <size_t Alignment>
struct aligned_size_t {
  static constexpr size_t align = Alignment;
  size_t value;
  explicit constexpr aligned_size_t(size_t size) : value(size) {}
  constexpr operator size_t() const { return value; }
};
// A thread by itself.
struct touchstone_one_ {
  static unsigned thread_rank() { return 0; }
  static unsigned size() { return 1; }
};
}  // namespace cuda
