#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>


extern "C" __global__ void past_end_wrong(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i];  // LINE past_end
}
extern "C" __global__ void past_end_right(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
extern "C" __global__ void before_start_wrong(const float* x, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[(int)threadIdx.x - 1];  // LINE before_start
}
extern "C" __global__ void before_start_right(const float* x, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x ? (int)threadIdx.x - 1 : 0];
}
extern "C" __global__ void null_wrong(const float* x, float* y, int n) {
  const float* p = n > 0 ? nullptr : x;
  y[threadIdx.x] = p[threadIdx.x];  // LINE null
}
extern "C" __global__ void null_right(const float* x, float* y, int n) {
  const float* p = n < 0 ? nullptr : x;
  if (threadIdx.x < n) y[threadIdx.x] = p[threadIdx.x];
}
__device__ void put(float* tile, int i, float v) {
  tile[i] = v;  // LINE shared_past_end
}
extern "C" __global__ void shared_past_end_wrong(const float* x, float* y, int n) {
  __shared__ float tile[32];
  __shared__ float other[32];
  other[threadIdx.x % 32] = 0.0f;
  put(tile, threadIdx.x + 1, x[0]);
}
extern "C" __global__ void shared_past_end_right(const float* x, float* y, int n) {
  __shared__ float tile[33];
  put(tile, threadIdx.x + 1, x[0]);
}
extern "C" __global__ void inner_index_wrong(const float* x, float* y, int n) {
  __shared__ float tile[4][8];
  tile[1][n] = x[0];  // LINE inner_index
}
extern "C" __global__ void inner_index_right(const float* x, float* y, int n) {
  __shared__ float tile[4][40];
  tile[1][n] = x[0];
}
extern "C" __global__ void local_index_wrong(const float* x, float* y, int n) {
  float mine[4] = {};
  for (int i = 0; i < n; ++i) mine[i] += x[i];  // LINE local_index
  y[0] = mine[0] + mine[3];
}
extern "C" __global__ void local_index_right(const float* x, float* y, int n) {
  float mine[64] = {};
  for (int i = 0; i < n; ++i) mine[i] += x[i];
  y[0] = mine[0] + mine[3];
}
extern "C" __global__ void dynamic_past_end_wrong(const float* x, float* y, int n) {
  extern __shared__ float tile[];
  tile[threadIdx.x + 1] = x[0];  // LINE dynamic_past_end
}
extern "C" __global__ void dynamic_past_end_right(const float* x, float* y, int n) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[0];
}
extern "C" __global__ void float4_wrong(const float* x, float* y, int n) {
  float4 v = *(const float4*)(x + 1);  // LINE float4
  y[0] = v.x + v.w;
}
extern "C" __global__ void float4_right(const float* x, float* y, int n) {
  float4 v = *(const float4*)(x + 4);
  y[0] = v.x + v.w;
}
extern "C" __global__ void uint4_wrong(const float* x, float* y, int n) {
  *reinterpret_cast<uint4*>(y + 2) = __ldg(reinterpret_cast<const uint4*>(x));  // LINE uint4
}
extern "C" __global__ void uint4_right(const float* x, float* y, int n) {
  *reinterpret_cast<uint4*>(y + 4) = __ldg(reinterpret_cast<const uint4*>(x));
}
extern "C" __global__ void half2_wrong(const float* x, float* y, int n) {
  __half2 v = *(reinterpret_cast<const __half2*>(reinterpret_cast<const __half*>(x) + 1));  // LINE half2
  y[0] = __low2float(v);
}
extern "C" __global__ void half2_right(const float* x, float* y, int n) {
  __half2 v = *(reinterpret_cast<const __half2*>(reinterpret_cast<const __half*>(x) + 2));
  y[0] = __low2float(v);
}
extern "C" __global__ void atomic_misaligned_wrong(const float* x, float* y, int n) {
  atomicAdd(reinterpret_cast<float*>(reinterpret_cast<char*>(y) + 2), 1.0f);  // LINE atomic_misaligned
}
extern "C" __global__ void atomic_misaligned_right(const float* x, float* y, int n) { atomicAdd(y + 2, 1.0f); }
extern "C" __global__ void uninitialised_wrong(const float* x, float* y, int n) {
  __shared__ float sum;
  atomicAdd(&sum, x[threadIdx.x]);  // LINE uninitialised
}
extern "C" __global__ void uninitialised_right(const float* x, float* y, int n) {
  __shared__ float sum;
  if (threadIdx.x == 0) sum = 0.0f;
  __syncthreads();
  atomicAdd(&sum, x[threadIdx.x]);
}
extern "C" __global__ void unwritten_tail_wrong(const float* x, float* y, int n) {
  __shared__ float tile[64];
  if (threadIdx.x < n) tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];  // LINE unwritten_tail
}
extern "C" __global__ void unwritten_tail_right(const float* x, float* y, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = threadIdx.x < n ? x[threadIdx.x] : 0.0f;
  __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void read_early_wrong(const float* x, float* y, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];  // STORE read_early
  if (threadIdx.x < n) y[threadIdx.x] = tile[63 - threadIdx.x];  // LINE read_early
}
extern "C" __global__ void read_early_right(const float* x, float* y, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) y[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void early_return_wrong(const float* x, float* y, int n) {
  if (threadIdx.x >= n) return;
  __syncthreads();  // LINE early_return
  y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void early_return_right(const float* x, float* y, int n) {
  __syncthreads();
  if (threadIdx.x >= n) return;
  y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void two_barriers_wrong(const float* x, float* y, int n) {
  if (threadIdx.x < n) {
    __syncthreads();  // LINE two_barriers
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void two_barriers_right(const float* x, float* y, int n) {
  if (blockIdx.x < n) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void lanes_gone_wrong(const float* x, float* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = __shfl_down_sync(0xffffffffu, x[threadIdx.x], 1);  // LINE lanes_gone
}
extern "C" __global__ void lanes_gone_right(const float* x, float* y, int n) {
  float v = __shfl_down_sync(0xffffffffu, threadIdx.x < n ? x[threadIdx.x] : 0.0f, 1);
  if (threadIdx.x < n) y[threadIdx.x] = v;
}
extern "C" __global__ void lanes_elsewhere_wrong(const float* x, float* y, int n) {
  if (threadIdx.x < 40)
    if (__any_sync(0xffffffffu, 1)) y[threadIdx.x] = 1.0f;  // LINE lanes_elsewhere
  __syncthreads();
}
extern "C" __global__ void lanes_elsewhere_right(const float* x, float* y, int n) {
  if (threadIdx.x < 32)
    if (__any_sync(0xffffffffu, 1) && threadIdx.x < n) y[threadIdx.x] = 1.0f;
  __syncthreads();
}
extern "C" __global__ void not_in_mask_wrong(const float* x, float* y, int n) {
  y[threadIdx.x] = __shfl_sync(1u, x[threadIdx.x], 0);  // LINE not_in_mask
}
extern "C" __global__ void not_in_mask_right(const float* x, float* y, int n) {
  if (threadIdx.x == 0) y[0] = __shfl_sync(1u, x[0], 0);
}
extern "C" __global__ void reads_absent_lane_wrong(const float* x, float* y, int n) {
  if (threadIdx.x < 2) y[threadIdx.x] = __shfl_xor_sync(0x3u, 1.0f, 2);  // LINE reads_absent_lane
}
extern "C" __global__ void reads_absent_lane_right(const float* x, float* y, int n) {
  if (threadIdx.x < 2) y[threadIdx.x] = __shfl_xor_sync(0x3u, 1.0f, 1);
}
extern "C" __global__ void spins_wrong(const float* x, float* y, int n) {
  int* flag = reinterpret_cast<int*>(y);
  while (atomicAdd(flag, 0) != 12345) __nanosleep(20);  // LINE spins
}
extern "C" __global__ void spins_right(const float* x, float* y, int n) {
  int* flag = reinterpret_cast<int*>(y);
  if (threadIdx.x == 63 && blockIdx.x == gridDim.x - 1) atomicExch(flag, 12345);
  while (atomicAdd(flag, 0) != 12345) __nanosleep(20);
}
extern "C" __global__ void volatile_spin_wrong(const float* x, float* y, int n) {
  volatile float* flag = y;
  while (*flag != 12345.0f) {  // LINE volatile_spin
  }
}
extern "C" __global__ void volatile_spin_right(const float* x, float* y, int n) {
  volatile float* flag = y;
  if (threadIdx.x == 5) *flag = 12345.0f;
  while (*flag != 12345.0f) {
  }
}
extern "C" __global__ void wmma_address_wrong(const float* x, float* y, int n) {
  __shared__ __half tile[300];
  if (threadIdx.x < 32) {
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> a;
    for (int i = threadIdx.x; i < 300; i += 32) tile[i] = __half(1.0f);
    __syncwarp();
    nvcuda::wmma::load_matrix_sync(a, tile + 8, 16);  // LINE wmma_address
  }
}
extern "C" __global__ void wmma_address_right(const float* x, float* y, int n) {
  __shared__ __half tile[300];
  if (threadIdx.x < 32) {
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> a;
    for (int i = threadIdx.x; i < 300; i += 32) tile[i] = __half(1.0f);
    __syncwarp();
    nvcuda::wmma::load_matrix_sync(a, tile + 16, 16);
  }
}
__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
extern "C" __global__ void constant_past_end_wrong(const float* x, float* y, int n) {
  __syncthreads();
  const float* p = table;
  y[0] = p[threadIdx.x];  // LINE constant_past_end
}
extern "C" __global__ void constant_past_end_right(const float* x, float* y, int n) {
  __syncthreads();
  const float* p = table;
  if (threadIdx.x == 0) y[0] = p[threadIdx.x % 4];
}
extern "C" __global__ void exchanged_first_wrong(const float* x, float* y, int n) {
  __shared__ int hits;
  atomicAdd(&hits, 1);  // LINE exchanged_first
  __syncthreads();
  y[0] = hits;
}
extern "C" __global__ void exchanged_first_right(const float* x, float* y, int n) {
  __shared__ int hits;
  atomicExch(&hits, 0);
  __syncthreads();
  atomicAdd(&hits, 1);
  __syncthreads();
  y[0] = hits;
}
