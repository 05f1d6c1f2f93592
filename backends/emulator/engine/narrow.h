// Numbers of 16 and 8 bits as floats, by their bits.
#pragma once
#include <cstdint>
#include <cstring>

namespace engine {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float widen(uint16_t bits, bool brain) {
  if (brain) return bits_as<float>(static_cast<uint32_t>(bits) << 16);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return bits_as<float>(sign | 0x7f800000u | rest << 13);
  return bits_as<float>(sign | bits_as<uint32_t>(bits_as<float>(rest << 13) * 0x1p112f));
}

inline float widen_e4m3(uint8_t bits) {
  const uint32_t rest = bits & 127u;
  if (rest == 127) return bits_as<float>(0x7fc00000u);
  const float value = bits_as<float>(rest << 20) * 0x1p120f;
  return bits & 128 ? -value : value;
}

inline uint16_t to_brain(float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline uint16_t to_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return 0x7fff;
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u)  // below the smallest normal number: the sum leaves the rounded bits at its end
    return static_cast<uint16_t>(sign | (bits_as<uint32_t>(bits_as<float>(rest) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13);
}

}  // namespace engine
