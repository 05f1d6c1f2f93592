#include "switch.h"

#if !defined(TOUCHSTONE_UCONTEXT)
#if defined(__x86_64__)
asm(R"(
.text
.hidden ts_change
.globl ts_change
.type ts_change, @function
.align 16
ts_change:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ts_change, .-ts_change
)");

void prepare(Context& context, char* low, size_t bytes, void (*start)()) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(low) + bytes) & ~uintptr_t(15));
  *--top = nullptr;  // where a return address would be: `start` never returns
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context.sp = top;
}
#else
asm(R"(
.text
.hidden ts_change
.globl ts_change
.type ts_change, %function
.align 4
ts_change:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size ts_change, .-ts_change
)");

void prepare(Context& context, char* low, size_t bytes, void (*start)()) {
  uintptr_t top = ((reinterpret_cast<uintptr_t>(low) + bytes) & ~uintptr_t(15)) - 160;
  void** frame = reinterpret_cast<void**>(top);
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[11] = reinterpret_cast<void*>(start);  // x30
  context.sp = frame;
}
#endif
#endif
