// Textures and surfaces over arrays: a handle is the address of a description, which Python makes (arguments.Texture).
#pragma once

typedef cudaTextureObject_t CUtexObject;
typedef cudaSurfaceObject_t CUsurfObject;

namespace touchstone {

struct Texture {
  char* data;
  int64_t sizes[3];    // x, y, z
  int64_t strides[3];  // in bytes
  int32_t channels, bytes;
  int32_t kind;     // 'f', 'i', 'u'
  int32_t linear;   // else the nearest texel
  int32_t address;  // 0 wrap, 1 clamp, 2 mirror, 3 border
  int32_t normalised, fractions;  // coordinates from 0 to 1; integers read as such
};

template <class T, class = void>
struct Channels {
  using type = T;
  static constexpr int count = 1;
};
template <class T>
struct Channels<T, std::enable_if_t<std::is_class<T>::value>> {
  using type = decltype(T::x);
  static constexpr int count = sizeof(T) / sizeof(type);
};

TS_QUIET inline int64_t texel_place(int64_t at, int64_t size, int mode) {
  if (at >= 0 && at < size) return at;
  if (mode == 0) return (at % size + size) % size;
  if (mode == 1) return at < 0 ? 0 : size - 1;
  if (mode == 2) {
    const int64_t within = (at % (2 * size) + 2 * size) % (2 * size);
    return within < size ? within : 2 * size - 1 - within;
  }
  return -1;
}
template <class T>
TS_PLAIN T texel(const Texture& t, int64_t x, int64_t y, int64_t z, int channel) {
  const int64_t at[3] = {x, y, z};
  char* p = t.data + channel * t.bytes;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t place = texel_place(at[axis], t.sizes[axis], t.address);
    if (place < 0) return T(0);
    p += place * t.strides[axis];
  }
  if (channel >= t.channels) return T(0);
  ts_check(p, static_cast<uint64_t>(t.bytes), 0, static_cast<uint64_t>(t.bytes), TS_PC);
  int64_t whole = 0;
  __builtin_memcpy(&whole, p, static_cast<size_t>(t.bytes));
  const int unused = 64 - 8 * t.bytes;
  if (t.kind == 'f') return static_cast<T>(t.bytes == 4 ?
      bit_cast<float>(static_cast<uint32_t>(whole)) : widen(static_cast<uint16_t>(whole), false));
  if (t.kind == 'i') whole = whole << unused >> unused;
  if (!t.fractions) return static_cast<T>(whole);
  const double most = t.kind == 'i' ? ldexp(1.0, 8 * t.bytes - 1) - 1 : ldexp(1.0, 8 * t.bytes) - 1;
  const double value = static_cast<double>(whole) / most;
  return static_cast<T>(value < -1 ? -1 : value);
}
// The value at a point, as the programming guide has it: fractions of 8 bits where texels are interpolated.
template <class T>
TS_PLAIN T sample(cudaTextureObject_t handle, int dims, float x, float y, float z) {
  using C = typename Channels<T>::type;
  const Texture& t = *reinterpret_cast<const Texture*>(handle);
  const float given[3] = {x, y, z};
  int64_t low[3] = {0, 0, 0};
  double fraction[3] = {0, 0, 0};
  for (int axis = 0; axis < 3; ++axis) {
    if (axis >= dims) {
      low[axis] = static_cast<int64_t>(given[axis]);
      continue;
    }
    const float at = t.normalised ? given[axis] * static_cast<float>(t.sizes[axis]) : given[axis];
    const double shifted = t.linear ? static_cast<double>(at) - 0.5 : static_cast<double>(at);
    low[axis] = static_cast<int64_t>(floor(shifted));
    if (t.linear) fraction[axis] = rint((shifted - floor(shifted)) * 256) / 256;
  }
  T out{};
  C* to = reinterpret_cast<C*>(&out);
  for (int channel = 0; channel < Channels<T>::count; ++channel) {
    if (!t.linear) {
      to[channel] = texel<C>(t, low[0], low[1], low[2], channel);
      continue;
    }
    double sum = 0;
    for (int corner = 0; corner < 1 << dims; ++corner) {
      double weight = 1;
      int64_t at[3];
      for (int axis = 0; axis < 3; ++axis) {
        const int upper = axis < dims ? corner >> axis & 1 : 0;
        if (axis < dims) weight *= upper ? fraction[axis] : 1 - fraction[axis];
        at[axis] = low[axis] + upper;
      }
      if (weight != 0) sum += weight * static_cast<double>(texel<C>(t, at[0], at[1], at[2], channel));
    }
    to[channel] = static_cast<C>(sum);
  }
  return out;
}

// Where a surface holds what lies `x` bytes into a row; null outside, as `mode` has it.
TS_PLAIN inline char* surface(
    cudaSurfaceObject_t handle, int64_t x, int64_t y, int64_t z, size_t bytes, int access, int mode) {
  const Texture& t = *reinterpret_cast<const Texture*>(handle);
  const int64_t wide = static_cast<int64_t>(bytes), width = t.sizes[0] * t.strides[0];
  const bool outside = x < 0 || x + wide > width || y < 0 || y >= t.sizes[1] || z < 0 || z >= t.sizes[2];
  if (outside && mode == cudaBoundaryModeTrap) ts_fault("a surface is accessed outside its bounds", TS_PC);
  if (outside && mode == cudaBoundaryModeZero) return nullptr;
  x = x < 0 ? 0 : x + wide > width ? width - wide : x;
  char* p = t.data + x + texel_place(y, t.sizes[1], 1) * t.strides[1] + texel_place(z, t.sizes[2], 1) * t.strides[2];
  ts_check(p, bytes, access, 1, TS_PC);
  return p;
}
template <class T>
TS_PLAIN T surface_read(cudaSurfaceObject_t handle, int x, int y, int z, int mode) {
  T out{};
  if (const char* p = surface(handle, x, y, z, sizeof(T), 0, mode)) __builtin_memcpy(&out, p, sizeof(T));
  return out;
}
template <class T>
TS_PLAIN void surface_write(const T& value, cudaSurfaceObject_t handle, int x, int y, int z, int mode) {
  if (char* p = surface(handle, x, y, z, sizeof(T), 1, mode)) __builtin_memcpy(p, &value, sizeof(T));
}

}  // namespace touchstone

template <class T>
__forceinline__ T tex1Dfetch(cudaTextureObject_t t, int x) {
  touchstone::Texture exact = *reinterpret_cast<const touchstone::Texture*>(t);
  exact.linear = exact.normalised = 0;
  exact.address = 3;
  return touchstone::sample<T>(reinterpret_cast<cudaTextureObject_t>(&exact), 1, static_cast<float>(x), 0, 0);
}
#define TS_TEXTURE(name, parameters, call)                            \
  template <class T>                                                  \
  __forceinline__ T name(cudaTextureObject_t t, TS_GROUP parameters) { \
    return touchstone::sample<T>(t, TS_GROUP call);                   \
  }                                                                   \
  template <class T>                                                  \
  __forceinline__ void name(T* out, cudaTextureObject_t t, TS_GROUP parameters) { \
    *out = touchstone::sample<T>(t, TS_GROUP call);                   \
  }
#define TS_GROUP(...) __VA_ARGS__
TS_TEXTURE(tex1D, (float x), (1, x, 0, 0))
TS_TEXTURE(tex2D, (float x, float y), (2, x, y, 0))
TS_TEXTURE(tex3D, (float x, float y, float z), (3, x, y, z))
TS_TEXTURE(tex1DLayered, (float x, int layer), (1, x, 0, static_cast<float>(layer)))
TS_TEXTURE(tex2DLayered, (float x, float y, int layer), (2, x, y, static_cast<float>(layer)))
TS_TEXTURE(tex1DLod, (float x, float), (1, x, 0, 0))
TS_TEXTURE(tex2DLod, (float x, float y, float), (2, x, y, 0))
TS_TEXTURE(tex3DLod, (float x, float y, float z, float), (3, x, y, z))
#undef TS_TEXTURE
template <class T>
inline T texCubemap(cudaTextureObject_t, float, float, float) {
  touchstone::not_covered("cube maps");
  return T{};
}
#define TS_SURFACE(name, parameters, call)                                                                      \
  template <class T>                                                                                            \
  __forceinline__ T name##read(cudaSurfaceObject_t s, TS_GROUP parameters, int mode = cudaBoundaryModeTrap) {    \
    return touchstone::surface_read<T>(s, TS_GROUP call, mode);                                                 \
  }                                                                                                             \
  template <class T>                                                                                            \
  __forceinline__ void name##read(                                                                              \
      T* out, cudaSurfaceObject_t s, TS_GROUP parameters, int mode = cudaBoundaryModeTrap) {                    \
    *out = touchstone::surface_read<T>(s, TS_GROUP call, mode);                                                 \
  }                                                                                                             \
  template <class T>                                                                                            \
  __forceinline__ void name##write(                                                                             \
      T value, cudaSurfaceObject_t s, TS_GROUP parameters, int mode = cudaBoundaryModeTrap) {                   \
    touchstone::surface_write(value, s, TS_GROUP call, mode);                                                   \
  }
TS_SURFACE(surf1D, (int x), (x, 0, 0))
TS_SURFACE(surf2D, (int x, int y), (x, y, 0))
TS_SURFACE(surf3D, (int x, int y, int z), (x, y, z))
TS_SURFACE(surf2DLayered, (int x, int y, int layer), (x, y, layer))
#undef TS_SURFACE
