// Tensor-core instructions for kernels of Numba, which brings them as inline PTX. Compiled when a kernel has one.
#include "touchstone.h"

extern "C" int tsn_line(uint64_t site);
extern "C" const char* tsn_file(uint64_t site);

static void whole_warps(const char* message, uint64_t site) {
  const uint64_t block = ts_block_dim();
  if ((block & 0xffffffffu) * (block >> 32 & 0xffffu) * (block >> 48) % 32) ts_fault(message, site);
}

static void multiply(ts_combine combine, float* d, const unsigned* a, const unsigned* b, const float* c,
                     uint64_t site) {
  whole_warps("mma.sync in a block whose last warp is not full", site);
  touchstone::Mma mine = {d, a, b, c};
  ts_warp(0xffffffffu, combine, &mine, "mma.sync", tsn_line(site), tsn_file(site));
}

extern "C" void tsn_mma_f16(float* d, const unsigned* a, const unsigned* b, const float* c, uint64_t site) {
  multiply(touchstone::mma_m16n8k16_combine<false>, d, a, b, c, site);
}
extern "C" void tsn_mma_bf16(float* d, const unsigned* a, const unsigned* b, const float* c, uint64_t site) {
  multiply(touchstone::mma_m16n8k16_combine<true>, d, a, b, c, site);
}
extern "C" void tsn_mma_tf32(float* d, const unsigned* a, const unsigned* b, const float* c, uint64_t site) {
  multiply(touchstone::mma_m16n8k8_tf32_combine, d, a, b, c, site);
}

extern "C" void tsn_ldmatrix_x4(unsigned* out, const void* row, int transposed, uint64_t site) {
  whole_warps("ldmatrix in a block whose last warp is not full", site);
  ts_check(row, 16, 0, 16, site);
  touchstone::Rows mine = {row, out};
  const ts_combine combine =
      transposed ? touchstone::ldmatrix_combine<4, true> : touchstone::ldmatrix_combine<4, false>;
  ts_warp(0xffffffffu, combine, &mine, "ldmatrix", tsn_line(site), tsn_file(site));
}
