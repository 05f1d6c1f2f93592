// What the programming guide allows from sm_70 on, and twins of it that are wrong.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void ended_before_barrier(const float* x, float* y) {
  __shared__ float s[64];
  if (threadIdx.x >= 40) return;
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[39 - threadIdx.x];
}
__global__ void ended_before_vote(const float* x, float* y) {
  if (threadIdx.x >= 40) return;
  y[threadIdx.x] = __any_sync(0xffffffffu, x[threadIdx.x] > 100.0f) + __shfl_sync(0xffffffffu, x[threadIdx.x], 0);
}
__global__ void barrier_at_two_places(const float* x, float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 32) {
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x + 32];
  } else {
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x - 32];
  }
}
__global__ void warp_stores_one_value(const float* x, float* y) {
  __shared__ float s[2];
  s[threadIdx.x / 32] = x[threadIdx.x / 32];
  __syncthreads();
  y[threadIdx.x] = s[0] + s[1];
}
__global__ void warp_stores_values(const float* x, float* y) {
  __shared__ float s[2];
  s[threadIdx.x / 32] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[0] + s[1];
}
__device__ unsigned ticket;
template <bool fenced>
__device__ void last_block(const float* x, float* part, float* y) {
  __shared__ bool last;
  part[64 * blockIdx.x + threadIdx.x] = x[threadIdx.x];
  if (fenced) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(&ticket, gridDim.x) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  float sum = 0;
  for (unsigned i = threadIdx.x; i < 64 * gridDim.x; i += 64) sum += part[i];
  y[threadIdx.x] = sum;
  if (threadIdx.x == 0) ticket = 0;
}
__global__ void last_block_fenced(const float* x, float* part, float* y) { last_block<true>(x, part, y); }
__global__ void last_block_unfenced(const float* x, float* part, float* y) { last_block<false>(x, part, y); }
__global__ void groups(const int* x, int* y) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  auto part = cg::binary_partition(tile, x[threadIdx.x] % 2 == 0);
  y[threadIdx.x] = cg::reduce(part, x[threadIdx.x], cg::plus<int>());
  y[threadIdx.x + 64] = cg::inclusive_scan(tile, x[threadIdx.x]);
}
__constant__ float table[3];
__device__ int counter;
struct Inner { float scale; int n; };
struct Params { const float* x; float* y; Inner in; float w[3]; };
__global__ void structures(Params p) {
  const int i = threadIdx.x;
  if (i < p.in.n) p.y[i] = p.in.scale * p.x[i] + p.w[i % 3] * table[i % 3];
  atomicAdd(&counter, 1);
}
__global__ void rows(float** rows, int at) { rows[threadIdx.x][at] = threadIdx.x + 1; }
__global__ void heap(int* out, int n) {
  int* p = static_cast<int*>(malloc(4 * n));
  int* q = new int[n];
  for (int i = 0; i < n; ++i) p[i] = q[i] = i;
  out[0] = p[n - 1] + q[n - 1];
  if (n == 7) out[0] = p[n];  // LINE heap
  free(p);
  delete[] q;
}
__global__ void unions(float* y) {
  __shared__ union { float f[32]; unsigned bits[32]; } s;
  s.f[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s.bits[31 - threadIdx.x] >> 20;
}
__global__ void linear(cudaTextureObject_t t, float* y, float x) { y[0] = tex2D<float>(t, x, 1.5f); }
__global__ void aligned(const float4* x, float* y) { y[0] = reinterpret_cast<size_t>(x) % 256; }
