#include <cuda_pipeline_primitives.h>

// Two buffers in shared memory, filled in turn: sums of tiles of 64 numbers, each tile read from its other end.
#define TILE 64

template <class Fill, class Use>
__device__ void in_turn(const float* x, int tiles, bool swaps, bool reads_other, bool meets, Fill fill, Use use) {
  int to = 1;
  fill(0, x);
  __syncthreads();
  for (int t = 1;; ++t) {
    use(reads_other ? to ^ 1 : 0);
    if (t == tiles) break;
    if (meets) __syncthreads();
    fill(to, x + t * TILE);  // FILLED
    __syncthreads();
    if (swaps) to ^= 1;
  }
}

extern "C" __global__ void plain(const float* x, float* y, int tiles, int swaps, int reads_other) {
  __shared__ float stage[2][TILE];
  float sum = 0.0f;
  in_turn(
      x, tiles, swaps, reads_other, true, [&](int to, const float* from) { stage[to][threadIdx.x] = from[threadIdx.x]; },
      [&](int at) { sum = sum * 0.5f + stage[at][TILE - 1 - threadIdx.x]; });
  y[threadIdx.x] = sum;
}

extern "C" __global__ void copied(const float* x, float* y, int tiles, int swaps, int reads_other) {
  extern __shared__ float dynamic[];
  float sum = 0.0f;
  in_turn(
      x, tiles, swaps, reads_other, true,
      [&](int to, const float* from) {
        __pipeline_memcpy_async(dynamic + to * TILE + threadIdx.x, from + threadIdx.x, 4);
        __pipeline_commit();
        __pipeline_wait_prior(0);
      },
      [&](int at) { sum = sum * 0.5f + dynamic[at * TILE + TILE - 1 - threadIdx.x]; });
  y[threadIdx.x] = sum;
}

// The last tile is left to a second loop's body, which takes it from `last`.
extern "C" __global__ void tail(const float* x, float* y, int tiles, int last, int) {
  __shared__ float stage[2][TILE];
  float sum = 0.0f;
  int to = 0;
  stage[0][threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int t = 1; t < tiles; ++t) {
    to ^= 1;
    stage[to][threadIdx.x] = x[t * TILE + threadIdx.x];
    sum = sum * 0.5f + stage[to ^ 1][TILE - 1 - threadIdx.x];
    __syncthreads();
  }
  y[threadIdx.x] = sum * 0.5f + stage[last ? to : to ^ 1][TILE - 1 - threadIdx.x];
}

// Right ones that come near: a tile that stays while others are loaded, the last of them in vain; the next tiles loaded
// before it is known that they are needed; what a thread keeps for itself alone.
extern "C" __global__ void stays(const float* x, float* y, int tiles, int needed) {
  extern __shared__ float dynamic[];
  float *own = dynamic, *stage = dynamic + TILE, sum = 0.0f;
  own[threadIdx.x] = x[threadIdx.x];
  for (int t = 0; t < tiles; ++t) {
    __syncthreads();
    stage[threadIdx.x] = x[t * TILE + threadIdx.x];
    __syncthreads();
    if (t < needed) sum += own[TILE - 1 - threadIdx.x] * stage[TILE - 1 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void ahead(const float* x, float* y, int tiles, int needed) {
  __shared__ float own[TILE], stage[3][TILE];
  float sum = 0.0f;
  own[threadIdx.x] = x[threadIdx.x];
  stage[0][threadIdx.x] = x[threadIdx.x];
  for (int t = 0; t < tiles; ++t) {
    if (t + 1 < tiles) stage[(t + 1) % 3][threadIdx.x] = x[(t + 1) * TILE + threadIdx.x];
    __syncthreads();
    for (int part = 0; part < 2 && t < needed; ++part) {  // a tile is read between several barriers
      sum += own[TILE - 1 - threadIdx.x] * stage[t % 3][(TILE - 1 - threadIdx.x + part) % TILE];
      __syncthreads();
    }
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void alone(const float* x, float* y, int tiles, int) {
  __shared__ float weight[TILE], mine[TILE];
  float sum = 0.0f;
  weight[threadIdx.x] = x[threadIdx.x];
  for (int t = 0; t < tiles; ++t) {
    mine[threadIdx.x] = x[t * TILE + threadIdx.x];
    sum += mine[threadIdx.x] * 2.0f;
    __syncthreads();
    sum += weight[TILE - 1 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

// Strips that the copy engine stores, of a tile of `strips`: those outside of the array go nowhere, from a place that is
// as large as what stays.
struct alignas(64) Map {
  unsigned long long opaque[16];
};

extern "C" __global__ void outside(const __grid_constant__ Map map, const float* x, int strips, int row) {
  extern __shared__ __align__(128) float dynamic[];
  float *own = dynamic, *strip = dynamic + TILE;
  own[threadIdx.x] = x[threadIdx.x];
  for (int s = 0; s < strips; ++s) {
    __syncthreads();
    strip[threadIdx.x] = own[TILE - 1 - threadIdx.x] + x[s * TILE + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(strip));
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                   "r"(0), "r"(row + s), "r"(from)
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
    }
  }
}
