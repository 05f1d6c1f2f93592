#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
namespace cg = cooperative_groups;
#define FULL 0xffffffffu

extern "C" __global__ void places(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int* mine = out + 8 * (block * (blockDim.x * blockDim.y * blockDim.z) + thread);
  mine[0] = blockIdx.x, mine[1] = blockIdx.y, mine[2] = blockIdx.z;
  mine[3] = threadIdx.x, mine[4] = threadIdx.y, mine[5] = threadIdx.z;
  mine[6] = thread % warpSize,
  mine[7] = cg::this_thread_block().thread_rank() + (cg::this_grid().thread_rank() - thread);
}

extern "C" __global__ void barriers(int* out, int n) {
  __shared__ int tile[96];
  int t = threadIdx.x;
  tile[t] = t;
  __syncthreads();
  out[t] = tile[95 - t];
  out[96 + t] = __syncthreads_count(t < n);
  out[192 + t] = __syncthreads_and(t < n);
  out[288 + t] = __syncthreads_or(t == n);
}

extern "C" __global__ void shuffles(const int* x, int* out, int width) {
  int t = threadIdx.x, v = x[t];
  out[t] = __shfl_sync(FULL, v, t * 7 + 3, width);
  out[32 + t] = __shfl_up_sync(FULL, v, 3, width);
  out[64 + t] = __shfl_down_sync(FULL, v, 5, width);
  out[96 + t] = __shfl_xor_sync(FULL, v, 6, width);
  out[128 + t] = (int)__shfl_xor_sync(FULL, (double)v, 1, width);
  out[160 + t] = (int)__half2float(__shfl_down_sync(FULL, __float2half((float)v), 1, width));
  out[192 + t] = (int)__shfl_sync(FULL, (long long)v << 33, 2, width) +
                 (int)(__shfl_sync(FULL, (long long)v << 33, 2, width) >> 33);
}

extern "C" __global__ void votes(const int* x, unsigned* out) {
  int t = threadIdx.x, same = -1;
  unsigned half = t < 16 ? 0xffffu : 0xffff0000u;
  out[t] = __ballot_sync(FULL, x[t] > 1);
  out[32 + t] = __all_sync(half, t < 16);
  out[64 + t] = __any_sync(half, t == 20);
  out[96 + t] = __match_any_sync(FULL, x[t]);
  out[128 + t] = __match_all_sync(half, t / 16, &same);
  out[160 + t] = same;
  out[192 + t] = __match_all_sync(half, t, &same);
  out[224 + t] = same;
  out[256 + t] = __reduce_add_sync(half, x[t]);
  out[288 + t] = __reduce_min_sync(FULL, x[t] - 2);
  out[320 + t] = __reduce_max_sync(FULL, (unsigned)(x[t] - 2));
  out[352 + t] = __reduce_and_sync(FULL, (unsigned)x[t] | 8u) + __reduce_or_sync(FULL, (unsigned)x[t]) * 100 +
                 __reduce_xor_sync(FULL, 1u << t) / 1000;
  out[384 + t] = __uni_sync(FULL, 1);
  out[416 + t] = __activemask();
}

extern "C" __global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d, __half* h,
                                   __nv_bfloat16* b, __half2* h2, __nv_bfloat162* b2) {
  int t = threadIdx.x + blockIdx.x * blockDim.x;
  atomicAdd(i, 2);
  atomicSub(i + 1, t);
  atomicMin(i + 2, -t);
  atomicMax(i + 3, t);
  atomicExch(i + 4, 7);
  atomicAnd(i + 5, ~(1 << t % 31));
  atomicOr(i + 6, 1 << t % 31);
  atomicXor(i + 7, 1 << t % 31);
  if (t == 3) {
    atomicCAS(i + 8, 5, 9);
    atomicCAS(i + 9, 4, 9);
  }
  atomicAdd(u, 3u);
  atomicInc(u + 1, 9u);
  atomicDec(u + 2, 9u);
  atomicMax(u + 3, (unsigned)t);
  atomicMin(u + 4, (unsigned)t);
  atomicAdd(l, 1ull << 33); atomicMax(l + 1, (unsigned long long)t << 40);
  atomicAdd(f, 0.5f); atomicExch(f + 1, 2.5f); atomicAdd(d, 0.25);
  atomicAdd(h, __float2half(0.5f)); atomicAdd(b, __float2bfloat16(0.5f));
  atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f)); atomicAdd(b2, __floats2bfloat162_rn(1.0f, 2.0f));
}

extern "C" __global__ void bits(const int* x, int* out) {
  int v = x[threadIdx.x], n = blockDim.x;
  out[threadIdx.x] = __popc(v);
  out[n + threadIdx.x] = __clz(v);
  out[2 * n + threadIdx.x] = __ffs(v);
  out[3 * n + threadIdx.x] = __brev(v);
  out[4 * n + threadIdx.x] = __mulhi(v, 123456789); out[5 * n + threadIdx.x] = __umulhi(v, 123456789u);
  out[6 * n + threadIdx.x] = __byte_perm(v, 0x11223344, 0x5140);
  out[7 * n + threadIdx.x] = __funnelshift_l(v, 0x80000001u, 5);
  out[8 * n + threadIdx.x] = __dp4a(v, 0x01020304, 7); out[9 * n + threadIdx.x] = __float_as_int(__int_as_float(v));
  out[10 * n + threadIdx.x] = max(v, 3) + min((unsigned)v, 5u);
}

extern "C" __global__ void functions(const float* x, float* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float v = x[i];
    float* o = out + i;
    o[0] = expf(v);
    o[n] = __expf(v);
    o[2 * n] = __logf(fabsf(v));
    o[3 * n] = rsqrtf(fabsf(v));
    o[4 * n] = exp2f(v);
    o[5 * n] = tanhf(v);
    o[6 * n] = erff(v);
    o[7 * n] = __fdividef(v, 3.0f);
    o[8 * n] = __frcp_rn(v);
    o[9 * n] = fmaf(v, v, 1.0f);
    o[10 * n] = __fmaf_rn(v, 3.0f, v);
    o[11 * n] = fmaxf(v, NAN);
    o[12 * n] = __saturatef(v);
    o[13 * n] = exp(v);
    o[14 * n] = __float2int_rn(v) + __float2int_rz(v) * 100;
    o[15 * n] = v * v + v; o[16 * n] = (float)__float2int_rn(v * 1e30f) + (float)__float2uint_rz(-v);
  }
}

template <class T> __device__ void narrow(const T* x, T* out, int n, float (*to)(T)) {
  for (int i = threadIdx.x; i + 2 < n; i += blockDim.x) {
    out[i] = __hfma(x[i], x[i + 1], x[i + 2]);
    out[n + i] = hexp(x[i]);
    out[2 * n + i] = x[i] * x[i + 1] + x[i + 2];
    out[3 * n + i] = __hmax(x[i], x[i + 1]);
    out[4 * n + i] = hrsqrt(__habs(x[i]));
    out[5 * n + i] = (T)(float)x[i];
  }
}
extern "C" __global__ void halves(const __half* x, __half* out, int n) { narrow(x, out, n, __half2float); }
extern "C" __global__ void brains(const __nv_bfloat16* x, __nv_bfloat16* out, int n) {
  narrow(x, out, n, __bfloat162float);
}

template <int M, int N, int K, class A, class TA, class LA, class LB, class C>
__device__ void wmma_once(const A* a, const A* b, const C* c, C* d, int lda, int ldb) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, M, N, K, TA, LA> fa;
  fragment<matrix_b, M, N, K, TA, LB> fb;
  fragment<accumulator, M, N, K, C> fc;
  load_matrix_sync(fa, a, lda);
  load_matrix_sync(fb, b, ldb);
  load_matrix_sync(fc, c, N, mem_row_major);
  for (int i = 0; i < fc.num_elements; ++i) fc.x[i] = fc.x[i] * C(2.0f);
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(d, fc, M, mem_col_major);
}
#define WMMA(name, M, N, K, A, TA, LA, LB, C) \
  extern "C" __global__ void name(const A* a, const A* b, const C* c, C* d, int lda, int ldb) { \
    wmma_once<M, N, K, A, TA, nvcuda::wmma::LA, nvcuda::wmma::LB, C>(a, b, c, d, lda, ldb); }
WMMA(wmma_16x16x16_half, 16, 16, 16, __half, __half, row_major, row_major, float)
WMMA(wmma_16x16x16_halfout, 16, 16, 16, __half, __half, row_major, col_major, __half)
WMMA(wmma_32x8x16_half, 32, 8, 16, __half, __half, col_major, row_major, float)
WMMA(wmma_8x32x16_bf16, 8, 32, 16, __nv_bfloat16, __nv_bfloat16, row_major, col_major, float)
WMMA(wmma_16x16x16_bf16, 16, 16, 16, __nv_bfloat16, __nv_bfloat16, col_major, col_major, float)
WMMA(wmma_16x16x8_tf32, 16, 16, 8, float, nvcuda::wmma::precision::tf32, row_major, row_major, float)

template <class T> __device__ void mma_once(const T* a, const T* b, const float* c, float* d, bool transposed) {
  __shared__ __align__(16) unsigned short as[16 * 16], bs[16 * 8];
  int lane = threadIdx.x, group = lane / 4, member = lane % 4;
  for (int i = lane; i < 256; i += 32) as[i] = ((const unsigned short*)a)[i];
  for (int i = lane; i < 128; i += 32) bs[i] = ((const unsigned short*)b)[i];
  __syncwarp();
  unsigned fa[4], fb[2];
  float fc[4];
  touchstone::ldmatrix_x4(fa, as + lane % 16 * 16 + lane / 16 * 8, false);
  if (transposed) touchstone::ldmatrix_x2(fb, bs + lane % 16 * 8, true);   // b is (16, 8)
  else touchstone::ldmatrix_x2(fb, bs + lane % 8 * 16 + lane / 8 % 2 * 8, false);  // b is (8, 16): its columns
  for (int r = 0; r < 4; ++r) fc[r] = c[(group + r / 2 * 8) * 8 + member * 2 + r % 2];
  touchstone::mma_m16n8k16(fc, fa, fb, fc, T());
  for (int r = 0; r < 4; ++r) d[(group + r / 2 * 8) * 8 + member * 2 + r % 2] = fc[r];
}
extern "C" __global__ void mma_half(const __half* a, const __half* b, const float* c, float* d, int transposed) {
  mma_once(a, b, c, d, transposed);
}
extern "C" __global__ void mma_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c, float* d,
                                    int transposed) {
  mma_once(a, b, c, d, transposed);
}
extern "C" __global__ void mma_tf32(const float* a, const float* b, const float* c, float* d) {
  int lane = threadIdx.x, group = lane / 4, member = lane % 4;
  unsigned fa[4], fb[2];
  float fc[4];
  for (int r = 0; r < 4; ++r) fa[r] = __float_as_uint(a[(group + r % 2 * 8) * 8 + member + r / 2 * 4]);
  for (int r = 0; r < 2; ++r) fb[r] = __float_as_uint(b[(member + r * 4) * 8 + group]);
  for (int r = 0; r < 4; ++r) fc[r] = c[(group + r / 2 * 8) * 8 + member * 2 + r % 2];
  touchstone::mma_m16n8k8_tf32(fc, fa, fb, fc);
  for (int r = 0; r < 4; ++r) d[(group + r / 2 * 8) * 8 + member * 2 + r % 2] = fc[r];
}
extern "C" __global__ void ldmatrix_one(const unsigned short* x, unsigned* out) {
  __shared__ __align__(16) unsigned short tile[64];
  tile[threadIdx.x] = x[threadIdx.x], tile[32 + threadIdx.x] = x[32 + threadIdx.x];
  __syncwarp();
  touchstone::ldmatrix_x1(out + threadIdx.x, tile + threadIdx.x % 8 * 8, false);
}

extern "C" __global__ void coalesced(int* out) {
  int t = threadIdx.x;
  if (t % 3 == 0) {
    cg::coalesced_group group = cg::coalesced_threads();
    out[t] = group.size() * 100 + group.thread_rank();
    out[64 + t] = group.shfl(t, 2);
  } else {
    out[t] = __popc(__activemask());
  }
}
extern "C" __global__ void groups(const float* x, float* out) {
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto quad = cg::tiled_partition<4>(warp);
  float v = x[threadIdx.x];
  float sum = cg::reduce(quad, v, cg::plus<float>());
  for (int step = warp.size() / 2; step > 0; step /= 2) v += warp.shfl_down(v, step);
  __shared__ float sums[4];
  if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = v;
  cg::sync(block);
  out[threadIdx.x] = sum;
  out[128 + threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
  out[256 + threadIdx.x] = quad.ballot(quad.thread_rank() != 1) + 100 * quad.any(threadIdx.x == 5) + 1000 * quad.all(1);
}
extern "C" __global__ void over_grid(int* x, int* out, int rounds) {
  for (int r = 0; r < rounds; ++r) {
    int next = x[(blockIdx.x + 1) % gridDim.x] + 1;
    unsigned int token = cg::this_grid().barrier_arrive();
    cg::this_grid().barrier_wait(std::move(token));
    if (threadIdx.x == 0) x[blockIdx.x] = next;
    cg::this_grid().sync();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = x[blockIdx.x];
}

__shared__ float at_file_scope[8];
extern __shared__ double dynamic_at_file_scope[];
template <class T, int N> __device__ void reversed(T* x) {
  __shared__ T tile[N], other[N + (N > 4 ? 1 : 0)];  // __shared__ in a comment
  tile[threadIdx.x] = x[threadIdx.x];
  other[threadIdx.x] = T(1);
  __syncthreads();
  x[threadIdx.x] = tile[N - 1 - threadIdx.x] + other[threadIdx.x];
}
extern "C" __global__ void shared_forms(float* x, int* y, float* z) {
  extern __shared__ __align__(16) char raw[];
  [[maybe_unused]] __shared__ float one;
  __shared__ __align__(128) float
      lines[2]
           [8];
  reversed<float, 8>(x);
  reversed<int, 8>(y);
  at_file_scope[threadIdx.x] = 1.0f;
  dynamic_at_file_scope[threadIdx.x] = 2.0;
  if (threadIdx.x == 0) one = 4.0f;
  lines[1][threadIdx.x] = reinterpret_cast<unsigned long long>(&lines[0][0]) % 128;
  __syncthreads();
  z[threadIdx.x] =
      at_file_scope[7 - threadIdx.x] + (float)reinterpret_cast<double*>(raw)[threadIdx.x] + one + lines[1][threadIdx.x];
}
extern "C" __global__ void vectors(const float4* x, float4* out, int2* pairs) {
  float4 v = x[threadIdx.x];
  out[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
  pairs[threadIdx.x] = make_int2(threadIdx.x, sizeof(uint4) + sizeof(ushort4));
}
struct Pair { int a; float b; };
extern "C" __global__ void scalars(float* out, int i, long long l, float f, double d, bool b, Pair p, __half h,
                                   const float* nothing) {
  out[0] = i;
  out[1] = (float)(l >> 32);
  out[2] = f;
  out[3] = (float)d;
  out[4] = b;
  out[5] = p.a + p.b;
  out[6] = __half2float(h);
  out[7] = nothing == nullptr;
}

// To 16 bits and back, as inline PTX says it.
extern "C" __global__ void narrowed(const float* x, unsigned short* half, unsigned short* brain, float* back, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half[i]) : "f"(x[i]));
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(brain[i]) : "f"(x[i]));
  asm("cvt.f32.f16 %0, %1;" : "=f"(back[i]) : "h"(half[i]));
}
