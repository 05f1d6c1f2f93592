#include <cooperative_groups.h>
extern "C" __global__ void no_barrier_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 0.0f;
  __syncthreads();
  tile[threadIdx.x] = x[threadIdx.x];  // SECOND no_barrier
  y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];  // FIRST no_barrier
}
extern "C" __global__ void no_barrier_right(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 0.0f;
  __syncthreads();
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" __global__ void reused_tile_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  float sum = 0.0f;
  for (int t = 0; t < 3; ++t) {
    tile[threadIdx.x] = x[threadIdx.x] + t;  // FIRST reused_tile
    __syncthreads();
    sum += tile[(threadIdx.x + 1) % 64];  // SECOND reused_tile
  }
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void reused_tile_right(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  float sum = 0.0f;
  for (int t = 0; t < 3; ++t) {
    tile[threadIdx.x] = x[threadIdx.x] + t;
    __syncthreads();
    sum += tile[(threadIdx.x + 1) % 64];
    __syncthreads();
  }
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void lost_update_wrong(const float* x, float* y, unsigned* counter) {
  y[0] = y[0] + x[threadIdx.x];  // FIRST lost_update SECOND lost_update
}
extern "C" __global__ void lost_update_right(const float* x, float* y, unsigned* counter) {
  atomicAdd(y, x[threadIdx.x]);
}
extern "C" __global__ void blocks_wrong(const float* x, float* y, unsigned* counter) {
  y[threadIdx.x] = x[threadIdx.x];  // FIRST blocks SECOND blocks
}
extern "C" __global__ void blocks_right(const float* x, float* y, unsigned* counter) {
  if (blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void mixed_atomic_wrong(const float* x, float* y, unsigned* counter) {
  atomicAdd(y, x[threadIdx.x]);  // FIRST mixed_atomic
  if (threadIdx.x == 9) y[0] = 0.0f;  // SECOND mixed_atomic
}
extern "C" __global__ void mixed_atomic_right(const float* x, float* y, unsigned* counter) {
  __shared__ float sum;
  if (threadIdx.x == 9) sum = 0.0f;
  __syncthreads();
  atomicAdd(&sum, x[threadIdx.x]);
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) y[0] = sum;
}
extern "C" __global__ void warp_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float v = tile[threadIdx.x ^ 1];  // SECOND warp
  tile[threadIdx.x] = v;  // FIRST warp
}
extern "C" __global__ void warp_right(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float v = tile[threadIdx.x ^ 1];
  __syncwarp();
  tile[threadIdx.x] = v;
}
extern "C" __global__ void half_warp_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  __syncwarp(half);
  if (threadIdx.x % 32 >= 16) tile[threadIdx.x ^ 16] = 1.0f;  // FIRST half_warp SECOND half_warp
}
extern "C" __global__ void half_warp_right(const float* x, float* y, unsigned* counter) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  unsigned half = threadIdx.x % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  __syncwarp(half);
  if (threadIdx.x % 16 >= 8) tile[threadIdx.x ^ 8] = 1.0f;
}
extern "C" __global__ void last_block_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ bool last;
  y[1 + blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];  // SECOND last_block
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0.0f;
  for (int i = 0; i < 64 * gridDim.x; ++i) sum += y[1 + i];  // FIRST last_block
  y[0] = sum;
}
extern "C" __global__ void last_block_right(const float* x, float* y, unsigned* counter) {
  __shared__ bool last;
  y[1 + blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0.0f;
  for (int i = 0; i < 64 * gridDim.x; ++i) sum += y[1 + i];
  y[0] = sum;
}
extern "C" __global__ void grid_wrong(const float* x, float* y, unsigned* counter) {
  y[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];  // SECOND grid
  __syncthreads();
  if (threadIdx.x == 0) y[200 + blockIdx.x] = y[(gridDim.x - 1 - blockIdx.x) * 64];  // FIRST grid
}
extern "C" __global__ void grid_right(const float* x, float* y, unsigned* counter) {
  y[blockIdx.x * 64 + threadIdx.x] = x[threadIdx.x];
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) y[200 + blockIdx.x] = y[(gridDim.x - 1 - blockIdx.x) * 64];
}
extern "C" __global__ void bytes_wrong(const float* x, float* y, unsigned* counter) {
  unsigned char* bytes = reinterpret_cast<unsigned char*>(y);
  if (blockIdx.x == 0) bytes[threadIdx.x / 2] = threadIdx.x;  // FIRST bytes SECOND bytes
}
extern "C" __global__ void bytes_right(const float* x, float* y, unsigned* counter) {
  unsigned char* bytes = reinterpret_cast<unsigned char*>(y);
  if (blockIdx.x == 0) bytes[threadIdx.x] = threadIdx.x;
}
// The loop that CUDA's guide gives for an atomic of one's own begins with a plain read.
extern "C" __global__ void compare_and_swap_right(const float* x, float* y, unsigned* counter) {
  unsigned long long* p = reinterpret_cast<unsigned long long*>(y);
  unsigned long long old = *p, seen;
  do {
    seen = old;
    old = atomicCAS(p, seen, __double_as_longlong(1.0 + __longlong_as_double(seen)));
  } while (seen != old);
}
extern "C" __global__ void plain_peek_wrong(const float* x, float* y, unsigned* counter) {
  if (threadIdx.x) atomicAdd(counter, 1u);  // FIRST plain_peek SECOND plain_peek
  else y[blockIdx.x] = *counter;  // FIRST plain_peek SECOND plain_peek
}
extern "C" __global__ void plain_peek_right(const float* x, float* y, unsigned* counter) {
  if (threadIdx.x) atomicAdd(counter, 1u);
  else y[blockIdx.x] = atomicAdd(counter, 0u);
}
extern "C" __global__ void flag_wrong(const float* x, float* y, unsigned* counter) {
  volatile unsigned* flag = counter;
  if (blockIdx.x == 1) {
    if (threadIdx.x == 0) {
      y[0] = 5.0f;  // SECOND flag
      *flag = 1;
    }
  } else if (threadIdx.x == 1) {
    while (*flag == 0) {
    }
    y[1] = y[0];  // FIRST flag
  }
}
extern "C" __global__ void flag_right(const float* x, float* y, unsigned* counter) {
  volatile unsigned* flag = counter;
  if (blockIdx.x == 1) {
    if (threadIdx.x == 0) {
      y[0] = 5.0f;
      __threadfence();
      *flag = 1;
    }
  } else if (threadIdx.x == 1) {
    while (*flag == 0) {
    }
    y[1] = y[0];
  }
}
// A warp's last steps as they were written before sm_70.
extern "C" __global__ void lanes_volatile_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float sums[64];
  volatile float* sum = sums;
  sum[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 16) {
    sum[threadIdx.x] += sum[threadIdx.x + 16];  // FIRST lanes_volatile SECOND lanes_volatile
    sum[threadIdx.x] += sum[threadIdx.x + 8];  // FIRST lanes_volatile SECOND lanes_volatile
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sum[0];
}
extern "C" __global__ void lanes_volatile_right(const float* x, float* y, unsigned* counter) {
  __shared__ float sums[64];
  volatile float* sum = sums;
  sum[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int by = 16; threadIdx.x < 32 && by; by /= 2) {
    const float more = sum[threadIdx.x + by];
    __syncwarp();
    sum[threadIdx.x] += more;
    __syncwarp();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = sum[0];
}
// Whoever finds something says so, and the others of the warp look now and then.
extern "C" __global__ void warp_flag_right(const float* x, float* y, unsigned* counter) {
  __shared__ volatile int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < 64 && !found; i += blockDim.x)
    if (x[i] > 10.0f) found = 1;
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = found;
}
// More threads read one element than are remembered, and of its readers those that count come late.
extern "C" __global__ void read_again_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  __syncthreads();
  float sum = first;
  __syncthreads();
  if (threadIdx.x / 2 == 2) sum += first;  // FIRST read_again
  if (threadIdx.x == 40) first = 1.0f;  // SECOND read_again
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void read_again_right(const float* x, float* y, unsigned* counter) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  __syncthreads();
  float sum = first;
  __syncthreads();
  if (threadIdx.x / 2 == 2) sum += first;
  __syncthreads();
  if (threadIdx.x == 40) first = 1.0f;
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void half_reads_wrong(const float* x, float* y, unsigned* counter) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  __syncthreads();
  const float sum = threadIdx.x < 32 ? first : 0.0f;  // FIRST half_reads
  if (threadIdx.x < 16) __syncwarp(0x0000ffff);
  if (threadIdx.x == 0) first = 1.0f;  // SECOND half_reads
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void half_reads_right(const float* x, float* y, unsigned* counter) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  __syncthreads();
  const float sum = threadIdx.x < 32 ? first : 0.0f;
  __syncwarp();
  if (threadIdx.x == 0) first = 1.0f;
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
// The last of two blocks that have read an element stores to it; the third takes no part in the count.
extern "C" __global__ void third_block_wrong(const float* x, float* y, unsigned* counter) {
  float sum = 0.0f;
  if (blockIdx.x < 2 || threadIdx.x == 5) sum = y[255];  // FIRST third_block
  __threadfence();
  __syncthreads();
  if (blockIdx.x < 2 && threadIdx.x == 0 && atomicAdd(counter, 1u) == 1) y[255] = 1.0f;  // SECOND third_block
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}
extern "C" __global__ void third_block_right(const float* x, float* y, unsigned* counter) {
  float sum = y[255];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(counter, 1u) == gridDim.x - 1) y[255] = 1.0f;
  y[blockIdx.x * 64 + threadIdx.x] = sum;
}

// A numbered barrier of as many threads as a warp has lets each warp go on alone.
extern "C" __global__ void numbered_barrier_wrong(const float* x, float* y, int* counter) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];  // FIRST numbered_barrier
  asm volatile("bar.sync 1, 32;");
  y[blockIdx.x * 64 + threadIdx.x] = all[63 - threadIdx.x];  // SECOND numbered_barrier
}
extern "C" __global__ void numbered_barrier_right(const float* x, float* y, int* counter) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  asm volatile("bar.sync 1, 64;");
  const float other = all[63 - threadIdx.x];
  asm volatile("bar.sync 1, 64;");
  all[threadIdx.x] = other;
  asm volatile("bar.sync 2, 64;");
  y[blockIdx.x * 64 + threadIdx.x] = all[63 - threadIdx.x];
}
// Memory that one thread has freed and another is given.
extern "C" __global__ void heap_again_right(const float* x, float* y, int* counter) {
  float* own = new float[4];
  for (int i = 0; i < 4; ++i) own[i] = x[threadIdx.x];
  y[blockIdx.x * 64 + threadIdx.x] = own[3];
  delete[] own;
}
