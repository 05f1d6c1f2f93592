// nvcuda::wmma: fragments of one warp. Which element lies in which lane is not defined by CUDA; here they are dealt out
// in the order of mma.sync for 16 x 16 accumulators, and eight or four in a row to a lane elsewhere.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <class Use, int M, int N, int K>
struct Shape_;
template <int M, int N, int K>
struct Shape_<matrix_a, M, N, K> {
  static constexpr int rows = M, cols = K;
};
template <int M, int N, int K>
struct Shape_<matrix_b, M, N, K> {
  static constexpr int rows = K, cols = N;
};
template <int M, int N, int K>
struct Shape_<accumulator, M, N, K> {
  static constexpr int rows = M, cols = N;
};
template <class T>
struct Storage_ {
  using type = T;
};
template <>
struct Storage_<precision::tf32> {
  using type = float;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
  static_assert(
      (M == 16 && N == 16 && (K == 16 || K == 8)) || (M == 32 && N == 8 && K == 16) || (M == 8 && N == 32 && K == 16),
      "wmma: 16x16x16, 32x8x16, 8x32x16, and 16x16x8 for tf32");
  using element_type = T;
  using storage_element_type = typename Storage_<T>::type;
  static constexpr int rows_ = Shape_<Use, M, N, K>::rows, cols_ = Shape_<Use, M, N, K>::cols;
  static constexpr int num_elements = rows_ * cols_ / 32;
  static constexpr int num_storage_elements = num_elements;
  storage_element_type x[num_elements];

  // Row and column of element i of a lane.
  static constexpr int row_of(int lane, int i) {
    if (rows_ == 16 && cols_ == 16) return lane / 4 + 8 * (i / 2 % 2);
    return (lane * num_elements + i) / cols_;
  }
  static constexpr int col_of(int lane, int i) {
    if (rows_ == 16 && cols_ == 16) return lane % 4 * 2 + i % 2 + 8 * (i / 4);
    return (lane * num_elements + i) % cols_;
  }
};

template <class F>
struct Offer_ {
  F* d;
  const void *a, *b, *c;
};

inline float widen_(float value) { return value; }
inline float widen_(__half value) { return __half2float(value); }
inline float widen_(__nv_bfloat16 value) { return __bfloat162float(value); }
inline float narrow_(float value, float) { return value; }
inline __half narrow_(float value, __half) { return __float2half_rn(value); }
template <class T>
struct Input_ {
  static float of(typename Storage_<T>::type value) { return widen_(value); }
};
template <>
struct Input_<precision::tf32> {
  static float of(float value) { return touchstone::tf32(__float_as_uint(value)); }
};

__forceinline__ float __float_to_tf32(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  return __uint_as_float((bits + 0x1000u) & 0xffffe000u);
}

template <class F, class V>
__forceinline__ void fill_fragment(F& f, const V& value) {
  for (int i = 0; i < F::num_elements; ++i) f.x[i] = value;
}

template <class F>
__forceinline__ void alignment_(const void* p, unsigned ldm, int access) {
  using S = typename F::storage_element_type;
  ts_check(p, sizeof(S), access, 32, touchstone::here());
  if (ldm * sizeof(S) % 16)
    ts_fault("the leading dimension of a wmma fragment is no multiple of 16 bytes", touchstone::here());
}

template <class F, class S>
__forceinline__ void load_(F& f, const S* p, unsigned ldm, bool row_major_, int line, const char* file) {
  alignment_<F>(p, ldm, 0);
  ts_warp(0xffffffffu, nullptr, nullptr, "load_matrix_sync", line, file);
  const int lane = static_cast<int>(ts_lane());
  for (int i = 0; i < F::num_elements; ++i) {
    const size_t row = F::row_of(lane, i), col = F::col_of(lane, i);
    f.x[i] = p[row_major_ ? row * ldm + col : col * ldm + row];
  }
}

template <class Use, int M, int N, int K, class T, class S>
__forceinline__ void load_matrix_sync(fragment<Use, M, N, K, T, row_major>& f, const S* p, unsigned ldm, TS_LINE) {
  load_(f, p, ldm, true, line, file);
}
template <class Use, int M, int N, int K, class T, class S>
__forceinline__ void load_matrix_sync(fragment<Use, M, N, K, T, col_major>& f, const S* p, unsigned ldm, TS_LINE) {
  load_(f, p, ldm, false, line, file);
}
template <int M, int N, int K, class T, class S>
__forceinline__ void load_matrix_sync(
    fragment<accumulator, M, N, K, T>& f, const S* p, unsigned ldm, layout_t layout, TS_LINE) {
  load_(f, p, ldm, layout == mem_row_major, line, file);
}
template <int M, int N, int K, class T, class S>
__forceinline__ void store_matrix_sync(
    S* p, const fragment<accumulator, M, N, K, T>& f, unsigned ldm, layout_t layout, TS_LINE) {
  using F = fragment<accumulator, M, N, K, T>;
  // The address alone: nothing of the target has to be written before.
  if (reinterpret_cast<uintptr_t>(p) % 32) alignment_<F>(p, ldm, 1);
  ts_warp(0xffffffffu, nullptr, nullptr, "store_matrix_sync", line, file);
  const int lane = static_cast<int>(ts_lane());
  for (int i = 0; i < F::num_elements; ++i) {
    const size_t row = F::row_of(lane, i), col = F::col_of(lane, i);
    p[layout == mem_row_major ? row * ldm + col : col * ldm + row] = f.x[i];
  }
}

template <int M, int N, int K, class T, class LA, class LB, class TD, class TC>
TS_PLAIN void mma_combine_(void** lanes, uint32_t) {
  touchstone::whole(lanes, "mma_sync");
  using A = fragment<matrix_a, M, N, K, T, LA>;
  using B = fragment<matrix_b, M, N, K, T, LB>;
  using C = fragment<accumulator, M, N, K, TC>;
  using D = fragment<accumulator, M, N, K, TD>;
  float a[M][K], b[K][N], c[M][N];
  for (int lane = 0; lane < 32; ++lane) {
    const Offer_<D>& mine = *static_cast<Offer_<D>*>(lanes[lane]);
    for (int i = 0; i < A::num_elements; ++i)
      a[A::row_of(lane, i)][A::col_of(lane, i)] = Input_<T>::of(static_cast<const A*>(mine.a)->x[i]);
    for (int i = 0; i < B::num_elements; ++i)
      b[B::row_of(lane, i)][B::col_of(lane, i)] = Input_<T>::of(static_cast<const B*>(mine.b)->x[i]);
    for (int i = 0; i < C::num_elements; ++i)
      c[C::row_of(lane, i)][C::col_of(lane, i)] = widen_(static_cast<const C*>(mine.c)->x[i]);
  }
  touchstone::multiply<M, N, K>(a, b, c);
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < D::num_elements; ++i)
      static_cast<Offer_<D>*>(lanes[lane])->d->x[i] = narrow_(c[D::row_of(lane, i)][D::col_of(lane, i)], TD());
}

template <int M, int N, int K, class T, class LA, class LB, class TD, class TC>
TS_PLAIN void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
                       const fragment<matrix_b, M, N, K, T, LB>& b, const fragment<accumulator, M, N, K, TC>& c,
                       bool saturate = false, TS_LINE) {
  (void)saturate;
  Offer_<fragment<accumulator, M, N, K, TD>> mine = {&d, &a, &b, &c};
  ts_warp(0xffffffffu, mma_combine_<M, N, K, T, LA, LB, TD, TC>, &mine, "mma_sync", line, file);
}

}  // namespace wmma
}  // namespace nvcuda
