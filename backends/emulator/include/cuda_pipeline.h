// The pipeline primitives: copies of 4, 8 or 16 bytes, in groups.
#pragma once
inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  ts_copy_async(to, from, static_cast<int>(size), static_cast<int>(size - zeros), touchstone::here());
}
inline void __pipeline_commit() { ts_copy_commit(); }
inline void __pipeline_wait_prior(size_t groups) { ts_copy_wait(static_cast<int>(groups)); }
