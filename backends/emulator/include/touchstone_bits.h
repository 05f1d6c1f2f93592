// Numbers of 16 bits as floats, by their bits: of kernels and of the engine.
#pragma once
#include <stdint.h>

namespace touchstone {

template <class To, class From>
__attribute__((always_inline)) inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

__attribute__((always_inline)) inline float widen(uint16_t bits, bool brain) {
  if (brain) return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return bit_cast<float>(sign | 0x7f800000u | rest << 13);
  // Subnormals as well: the exponent is moved by a multiplication.
  return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(rest << 13) * 0x1p112f));
}

__attribute__((always_inline)) inline uint16_t to_brain(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

__attribute__((always_inline)) inline uint16_t to_half(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return 0x7fff;
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u)  // below the smallest normal number: the sum leaves the rounded bits at its end
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(bit_cast<float>(rest) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13);
}

}  // namespace touchstone
