// Atomics: real ones, since blocks run on several cores.
#pragma once

namespace touchstone {

template <size_t N>
struct Word;
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint64_t;
};

struct Exchange;

// old = *p; *p = f(old, value), at once. Returns old.
template <class Op, class T>
TS_PLAIN T atomic(T* p, T value, T compare) {
  using W = typename Word<sizeof(T)>::type;
  ts_check(p, sizeof(T), std::is_same<Op, Exchange>::value ? 3 : 2, sizeof(T), TS_PC);
  W* word = reinterpret_cast<W*>(p);
  W before = __atomic_load_n(word, __ATOMIC_SEQ_CST), after;
  T old, next;
  do {
    __builtin_memcpy(&old, &before, sizeof(T));
    next = Op::of(old, value, compare);
    __builtin_memcpy(&after, &next, sizeof(T));
  } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  ts_atomic_done(before != after, TS_PC);
  return old;
}

#define TS_OP(Name, expression)                                                       \
  struct Name {                                                                       \
    template <class T>                                                                \
    TS_QUIET static T of(T old, T value, T compare) {                                 \
      (void)compare, (void)value;                                                     \
      return expression;                                                              \
    }                                                                                 \
  }
TS_OP(Add, static_cast<T>(old + value));
TS_OP(Sub, static_cast<T>(old - value));
TS_OP(Exchange, value);
TS_OP(Min, value < old ? value : old);
TS_OP(Max, value > old ? value : old);
TS_OP(And, static_cast<T>(old & value));
TS_OP(Or, static_cast<T>(old | value));
TS_OP(Xor, static_cast<T>(old ^ value));
TS_OP(Increment, old >= value ? T(0) : static_cast<T>(old + 1));
TS_OP(Decrement, old == 0 || old > value ? value : static_cast<T>(old - 1));
TS_OP(Swap, old == compare ? value : old);
#undef TS_OP

// Of __half and __nv_bfloat16 and their pairs; their headers fill it in.
template <class T>
struct Adder;
struct AddNarrow {
  template <class T>
  TS_QUIET static T of(T old, T value, T) {
    return Adder<T>::of(old, value);
  }
};

}  // namespace touchstone

#define TS_ATOMIC(name, Op, T) \
  __forceinline__ T name(T* p, T value) { return touchstone::atomic<touchstone::Op>(p, value, value); }
#define TS_ATOMIC_ALL(T)        \
  TS_ATOMIC(atomicExch, Exchange, T) \
  TS_ATOMIC(atomicMin, Min, T)  \
  TS_ATOMIC(atomicMax, Max, T)  \
  TS_ATOMIC(atomicAnd, And, T)  \
  TS_ATOMIC(atomicOr, Or, T)    \
  TS_ATOMIC(atomicXor, Xor, T)
TS_ATOMIC_ALL(int)
TS_ATOMIC_ALL(unsigned)
TS_ATOMIC_ALL(unsigned long long)
TS_ATOMIC(atomicMin, Min, long long)
TS_ATOMIC(atomicMax, Max, long long)
TS_ATOMIC(atomicAdd, Add, int)
TS_ATOMIC(atomicAdd, Add, unsigned)
TS_ATOMIC(atomicAdd, Add, unsigned long long)
TS_ATOMIC(atomicAdd, Add, float)
TS_ATOMIC(atomicAdd, Add, double)
TS_ATOMIC(atomicSub, Sub, int)
TS_ATOMIC(atomicSub, Sub, unsigned)
TS_ATOMIC(atomicExch, Exchange, float)
TS_ATOMIC(atomicInc, Increment, unsigned)
TS_ATOMIC(atomicDec, Decrement, unsigned)
#undef TS_ATOMIC_ALL

#define TS_CAS(T) \
  __forceinline__ T atomicCAS(T* p, T compare, T value) { \
    return touchstone::atomic<touchstone::Swap>(p, value, compare); \
  }
TS_CAS(int)
TS_CAS(unsigned)
TS_CAS(unsigned long long)
TS_CAS(unsigned short)
#undef TS_CAS

// The scopes differ on a GPU only.
#define atomicSub_block atomicSub
#define atomicSub_system atomicSub
#define atomicMin_system atomicMin
#define atomicMax_system atomicMax
#define atomicInc_block atomicInc
#define atomicInc_system atomicInc
#define atomicDec_block atomicDec
#define atomicDec_system atomicDec
#define atomicAnd_block atomicAnd
#define atomicAnd_system atomicAnd
#define atomicOr_block atomicOr
#define atomicOr_system atomicOr
#define atomicXor_block atomicXor
#define atomicXor_system atomicXor
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd
#define atomicMax_block atomicMax
#define atomicMin_block atomicMin
#define atomicCAS_block atomicCAS
#define atomicExch_block atomicExch
#define atomicCAS_system atomicCAS
#define atomicExch_system atomicExch
