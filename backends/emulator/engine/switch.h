// From one stack to another. `TOUCHSTONE_UCONTEXT` selects the portable way, which is also the one of other processors.
#pragma once
#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(TOUCHSTONE_UCONTEXT)
#define TOUCHSTONE_UCONTEXT 1
#endif

#if defined(TOUCHSTONE_UCONTEXT)
#include <ucontext.h>

struct Context {
  ucontext_t* state = nullptr;
};

inline void prepare(Context& context, char* low, size_t bytes, void (*start)()) {
  if (!context.state) context.state = new ucontext_t;
  getcontext(context.state);
  context.state->uc_stack.ss_sp = low;
  context.state->uc_stack.ss_size = bytes;
  context.state->uc_link = nullptr;
  makecontext(context.state, start, 0);
}

inline void change(Context& from, Context& to) {
  if (!from.state) from.state = new ucontext_t;
  swapcontext(from.state, to.state);
}

inline void release(Context& context) {
  delete context.state;
  context.state = nullptr;
}

#else

struct Context {
  void* sp = nullptr;
};

extern "C" void ts_change(void** from, void* to);

// `start` runs on the stack of `bytes` from `low` once the context is changed to; it never returns.
void prepare(Context& context, char* low, size_t bytes, void (*start)());
inline void change(Context& from, Context& to) { ts_change(&from.sp, to.sp); }
inline void release(Context& context) { context.sp = nullptr; }
#endif
