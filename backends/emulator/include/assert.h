// No include guard, as in C: what `assert` means is given anew each time.
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : touchstone::assertion(#condition))
#endif
