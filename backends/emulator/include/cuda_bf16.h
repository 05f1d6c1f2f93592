// NVIDIA's own header, and then what it leaves to the device compiler.
#pragma once
#include_next <cuda_bf16.h>

#define TS_N __nv_bfloat16
#define TS_N2 __nv_bfloat162
#define TS_TO __bfloat162float
#define TS_FROM __float2bfloat16_rn
#define TS_FROM_DOUBLE __double2bfloat16
#define TS_PAIR_OF __halves2bfloat162
#define TS_TO_WORD __bfloat162
#define TS_KIND 'b'
#include "touchstone_narrow.h"

namespace touchstone {
template <>
struct Narrow<__nv_bfloat16> {
  static constexpr bool brain = true;
};
}  // namespace touchstone
