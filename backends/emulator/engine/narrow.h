// Numbers of 16 and 8 bits as floats, by their bits.
#pragma once
#include "../include/touchstone_bits.h"

namespace engine {

using touchstone::bit_cast;
using touchstone::to_brain;
using touchstone::to_half;
using touchstone::widen;

inline float widen_e4m3(uint8_t bits) {
  const uint32_t rest = bits & 127u;
  if (rest == 127) return bit_cast<float>(0x7fc00000u);
  const float value = bit_cast<float>(rest << 20) * 0x1p120f;
  return bits & 128 ? -value : value;
}

}  // namespace engine
