// NVIDIA's own header, and then what it leaves to the device compiler.
#pragma once
#include_next <cuda_fp16.h>

#define TS_N __half
#define TS_N2 __half2
#define TS_TO __half2float
#define TS_FROM __float2half_rn
#define TS_FROM_DOUBLE __double2half
#define TS_PAIR_OF __halves2half2
#define TS_TO_WORD __half2
#define TS_KIND 'e'
#include "touchstone_narrow.h"

namespace touchstone {
template <>
struct Narrow<__half> {
  static constexpr bool brain = false;
};
}  // namespace touchstone
