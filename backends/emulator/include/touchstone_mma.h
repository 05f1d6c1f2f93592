// Tensor-core instructions of one warp, fragments laid out over the lanes as the PTX ISA says.
#pragma once
#include <stdio.h>

namespace touchstone {

template <class T>
struct Narrow;  // `brain`: whether T is __nv_bfloat16; the types' headers fill it in

// A tensor core takes the upper 19 bits of a register.
__attribute__((always_inline)) inline float tf32(uint32_t bits) { return bit_cast<float>(bits & 0xffffe000u); }

struct Mma {
  float* d;
  const unsigned *a, *b;
  const float* c;
};

// An instruction of the whole warp, which each of its lanes has to take part in.
TS_PLAIN inline void whole(void** lanes, const char* what) {
  for (int i = 0; i < 32; ++i) {
    if (lanes[i]) continue;
    char text[120];
    snprintf(text, sizeof text, "%s without lane %d of the warp, which has ended or does not exist", what, i);
    ts_fault(text, 0);
  }
}

template <int M, int N, int K>
__attribute__((always_inline)) inline void multiply(const float (&a)[M][K], const float (&b)[K][N], float (&c)[M][N]) {
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < K; ++k) {
      const float left = a[i][k];
      for (int j = 0; j < N; ++j) c[i][j] += left * b[k][j];
    }
}

template <bool brain>
TS_PLAIN void mma_m16n8k16_combine(void** lanes, uint32_t) {
  whole(lanes, "mma");
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Mma& mine = *static_cast<Mma*>(lanes[lane]);
    const int group = lane / 4, member = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const int row = group + 8 * (r % 2), col = 2 * member + 8 * (r / 2);
      a[row][col] = widen(static_cast<uint16_t>(mine.a[r]), brain);
      a[row][col + 1] = widen(static_cast<uint16_t>(mine.a[r] >> 16), brain);
    }
    for (int r = 0; r < 2; ++r) {
      b[2 * member + 8 * r][group] = widen(static_cast<uint16_t>(mine.b[r]), brain);
      b[2 * member + 8 * r + 1][group] = widen(static_cast<uint16_t>(mine.b[r] >> 16), brain);
    }
    for (int r = 0; r < 4; ++r) c[group + 8 * (r / 2)][2 * member + r % 2] = mine.c[r];
  }
  multiply<16, 8, 16>(a, b, c);
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      static_cast<Mma*>(lanes[lane])->d[r] = c[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
}

TS_PLAIN inline void mma_m16n8k8_tf32_combine(void** lanes, uint32_t) {
  whole(lanes, "mma");
  float a[16][8], b[8][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Mma& mine = *static_cast<Mma*>(lanes[lane]);
    const int group = lane / 4, member = lane % 4;
    for (int r = 0; r < 4; ++r) a[group + 8 * (r % 2)][member + 4 * (r / 2)] = tf32(mine.a[r]);
    for (int r = 0; r < 2; ++r) b[member + 4 * r][group] = tf32(mine.b[r]);
    for (int r = 0; r < 4; ++r) c[group + 8 * (r / 2)][2 * member + r % 2] = mine.c[r];
  }
  multiply<16, 8, 8>(a, b, c);
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      static_cast<Mma*>(lanes[lane])->d[r] = c[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
}

template <class T>
TS_PLAIN void mma_m16n8k16_plain(Mma mine, int line, const char* file) {
  ts_warp(0xffffffffu, mma_m16n8k16_combine<Narrow<T>::brain>, &mine, "mma_m16n8k16", line, file);
}
TS_PLAIN inline void mma_m16n8k8_tf32_plain(Mma mine, int line, const char* file) {
  ts_warp(0xffffffffu, mma_m16n8k8_tf32_combine, &mine, "mma_m16n8k8", line, file);
}

template <class T>
__forceinline__ void mma_m16n8k16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], T = T(), TS_LINE) {
  mma_m16n8k16_plain<T>(Mma{d, a, b, c}, line, file);
}

__forceinline__ void mma_m16n8k8_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], TS_LINE) {
  mma_m16n8k8_tf32_plain(Mma{d, a, b, c}, line, file);
}

struct Rows {
  const void* row;
  unsigned* out;
};

template <int count, bool transposed>
TS_PLAIN void ldmatrix_combine(void** lanes, uint32_t) {
  whole(lanes, "ldmatrix");
  for (int matrix = 0; matrix < count; ++matrix) {
    const uint16_t* rows[8];
    for (int i = 0; i < 8; ++i)
      rows[i] = static_cast<const uint16_t*>(static_cast<Rows*>(lanes[8 * matrix + i])->row);
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4, member = lane % 4;
      const uint16_t low = transposed ? rows[2 * member][group] : rows[group][2 * member];
      const uint16_t high = transposed ? rows[2 * member + 1][group] : rows[group][2 * member + 1];
      static_cast<Rows*>(lanes[lane])->out[matrix] = static_cast<uint32_t>(high) << 16 | low;
    }
  }
}

template <int count>
TS_PLAIN void ldmatrix(unsigned* out, const void* row, bool transposed, int line, const char* file) {
  if (static_cast<int>(ts_lane()) < 8 * count) ts_check(row, 16, 0, 16, TS_PC);
  Rows mine = {row, out};
  ts_warp(0xffffffffu, transposed ? ldmatrix_combine<count, true> : ldmatrix_combine<count, false>, &mine, "ldmatrix",
          line, file);
}
__forceinline__ void ldmatrix_x1(unsigned* out, const void* row, bool transposed = false, TS_LINE) {
  ldmatrix<1>(out, row, transposed, line, file);
}
__forceinline__ void ldmatrix_x2(unsigned* out, const void* row, bool transposed = false, TS_LINE) {
  ldmatrix<2>(out, row, transposed, line, file);
}
__forceinline__ void ldmatrix_x4(unsigned* out, const void* row, bool transposed = false, TS_LINE) {
  ldmatrix<4>(out, row, transposed, line, file);
}

}  // namespace touchstone
