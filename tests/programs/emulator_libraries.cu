// Device code of libraries: collectives of CUB, numbers of cuRAND, atomics of libcu++, types and accessors of PyTorch.
#include <ATen/cuda/CUDAContext.h>
#include <torch/extension.h>

#include <cub/block/block_reduce.cuh>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <curand_kernel.h>

constexpr int THREADS = 96, ITEMS = 3;

__global__ void reduce(const float* x, float* y, int valid) {
  using Reduce = cub::BlockReduce<float, THREADS>;
  __shared__ typename Reduce::TempStorage temp;
  float items[ITEMS];
  cub::LoadDirectBlocked(threadIdx.x, x, items);
  const float sum = Reduce(temp).Sum(items);
#ifndef MISSING
  __syncthreads();
#endif
  const float most = Reduce(temp).Reduce(x[threadIdx.x], cub::Max(), valid);  // LINE reduce
  if (threadIdx.x == 0) y[0] = sum, y[1] = most;
}

struct Running {
  int total;
  __device__ int operator()(int block) {
    const int before = total;
    total += block;
    return before;
  }
};
__global__ void scan(const int* x, int* inclusive, int* exclusive, int* running, int* totals) {
  using Scan = cub::BlockScan<int, THREADS, cub::BLOCK_SCAN_WARP_SCANS>;
  __shared__ union {
    typename Scan::TempStorage scan;
    typename cub::BlockExchange<int, THREADS, ITEMS>::TempStorage exchange;
  } temp;
  int items[ITEMS], out[ITEMS], total;
  cub::BlockLoad<int, THREADS, ITEMS, cub::BLOCK_LOAD_STRIPED>().Load(x, items);
  cub::BlockExchange<int, THREADS, ITEMS>(temp.exchange).StripedToBlocked(items);
  __syncthreads();
  Scan(temp.scan).ExclusiveSum(items, out, total);
  cub::StoreDirectBlocked(threadIdx.x, exclusive, out);
  __syncthreads();
  int one;
  Scan(temp.scan).InclusiveScan(x[threadIdx.x], one, cub::Max());
  inclusive[threadIdx.x] = one;
  if (threadIdx.x == 0) totals[0] = total;
  Running before = {100};
  for (int i = 0; i < 2; ++i) {
    __syncthreads();
    Scan(temp.scan).InclusiveSum(x[i * THREADS + threadIdx.x], one, before);
    running[i * THREADS + threadIdx.x] = one;
  }
}

__global__ void warps(const int* x, int* sums, int* scans, int* heads) {
  using Reduce = cub::WarpReduce<int, 16>;
  __shared__ typename Reduce::TempStorage temp[THREADS / 16];
  const int mine = x[threadIdx.x];
  const int sum = Reduce(temp[threadIdx.x / 16]).Sum(mine);
  if (threadIdx.x % 16 == 0) sums[threadIdx.x / 16] = sum;
  cub::WarpScan<int>::TempStorage room;
  cub::WarpScan<int>(room).ExclusiveSum(mine, scans[threadIdx.x]);
  using Whole = cub::WarpReduce<int>;
  __shared__ typename Whole::TempStorage whole[THREADS / 32];
  const int part = Whole(whole[threadIdx.x / 32]).HeadSegmentedSum(mine, threadIdx.x % 8 == 0);
  if (threadIdx.x % 8 == 0) heads[threadIdx.x / 8] = part;
}

__global__ void sort(float* keys, int* values, int* heads, unsigned* counts) {
  using Sort = cub::BlockRadixSort<float, THREADS, ITEMS, int>;
  __shared__ typename Sort::TempStorage temp;
  float key[ITEMS];
  int value[ITEMS], head[ITEMS];
  for (int i = 0; i < ITEMS; ++i) key[i] = keys[threadIdx.x * ITEMS + i], value[i] = threadIdx.x * ITEMS + i;
  Sort(temp).SortDescending(key, value);
  cub::BlockDiscontinuity<float, THREADS>().FlagHeads(head, key, cub::Inequality());
  unsigned char bin[ITEMS];
  for (int i = 0; i < ITEMS; ++i) {
    keys[threadIdx.x * ITEMS + i] = key[i], values[threadIdx.x * ITEMS + i] = value[i];
    heads[threadIdx.x * ITEMS + i] = head[i], bin[i] = key[i] > 0;
  }
  __shared__ unsigned histogram[2];
  cub::BlockHistogram<unsigned char, THREADS, ITEMS, 2>().Histogram(bin, histogram);
  __syncthreads();
  if (threadIdx.x < 2) counts[threadIdx.x] = histogram[threadIdx.x];
}

__global__ void words(unsigned* philox, unsigned* xorwow, float* uniform, float* normal, curandState* kept) {
  curandStatePhilox4_32_10_t four;
  curand_init(1234ull, 7ull, 5ull, &four);
  curandState_t state;
  curand_init(1234ull, 7ull, 5ull, &state);
  for (int i = 0; i < 5; ++i) philox[i] = curand(&four), xorwow[i] = curand(&state);
  const uint4 more = curand4(&four);
  philox[5] = more.x, philox[8] = more.w;
  uniform[0] = curand_uniform(&state);
  for (int i = 0; i < 3; ++i) normal[i] = curand_normal(&state);
  kept[0] = state;
}

__global__ void flags(unsigned* count, float* sum, int* order, unsigned long long* flag) {
  cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*count).fetch_add(2u, cuda::memory_order_relaxed);
  cuda::atomic_ref<float, cuda::thread_scope_device>(*sum).fetch_add(1.5f);
  cuda::atomic_ref<unsigned long long, cuda::thread_scope_device> set(*flag);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    order[0] = 42;
    set.store(1, cuda::memory_order_release);
  }
  if (blockIdx.x == 1 && threadIdx.x == 0) {
    while (!set.load(cuda::memory_order_acquire)) {}
    order[1] = order[0];
  }
  __shared__ cuda::atomic<int, cuda::thread_scope_block> shared;
  if (threadIdx.x == 0) shared.store(0);
  __syncthreads();
  ++shared;
  __syncthreads();
  if (threadIdx.x == 0) order[2 + blockIdx.x] = shared.load();
}

__global__ void C10_LAUNCH_BOUNDS_1(64) halves(
    const at::Half* x, const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> table, float* y, int n) {
  using wide = at::acc_type<at::Half, true>;
  CUDA_KERNEL_LOOP(i, n) { y[i] = static_cast<wide>(x[i]) * table[i % table.size(0)][1] + at::Half(0.5f); }
}

__global__ void seeded(at::PhiloxCudaState state, uint64_t* out) {
  const auto [seed, offset] = at::cuda::philox::unpack(state);
  out[0] = seed;
  out[1] = offset;
}

__global__ void lanes(const unsigned* a, const unsigned* b, unsigned* out, int n) {
  const int i = threadIdx.x;
  const unsigned x = a[i], y = b[i];
  const unsigned all[] = {__vadd4(x, y),        __vaddss4(x, y),   __vaddus2(x, y), __vsub2(x, y),  __vabsdiffu4(x, y),
                          __vcmpgts2(x, y),     __vsetleu4(x, y),  __vmaxs4(x, y),  __vminu2(x, y), __vavgs2(x, y),
                          __vneg4(x),           __vabsss2(x),      __vsadu4(x, y)};
  for (unsigned k = 0; k < sizeof all / sizeof *all; ++k) out[k * n + i] = all[k];
}

__global__ void extremes(const int* a, const int* b, const int* c, int* out, int n) {
  const int i = threadIdx.x, x = a[i], y = b[i], z = c[i];
  bool first, high, low;
  const int larger = __vibmax_s32(x, y, &first);
  const unsigned pair = __vibmin_u16x2(x, y, &high, &low);
  const unsigned all[] = {(unsigned)__viaddmax_s32_relu(x, y, z), __viaddmin_u32(x, y, z),
                          (unsigned)__vimax3_s32(x, y, z), __vimin3_s16x2_relu(x, y, z), __viaddmax_s16x2(x, y, z), (unsigned)larger, first, pair,
                          high * 2u + low, __funnelshift_lc(x, y, z & 63), __funnelshift_rc(x, y, z & 63),
                          __fns(x, y & 31, (z & 7) - 3)};
  for (unsigned k = 0; k < sizeof all / sizeof *all; ++k) out[k * n + i] = all[k];
}

__global__ void complex_sums(const __half2* a, const __half2* b, __half2* c) {
  c[threadIdx.x] = __hcmadd(a[threadIdx.x], b[threadIdx.x], c[threadIdx.x]);
}

__global__ void numbered(int* out) {  // two halves of the block meet by themselves, then the block
  __shared__ int met[64];
  const unsigned half = threadIdx.x / 32;
  met[threadIdx.x] = threadIdx.x;
  __barrier_sync_count(1 + half, 32);
  const int other = met[threadIdx.x ^ 1];
  __barrier_sync(0);
  out[blockIdx.x * 64 + threadIdx.x] = other + met[63 - threadIdx.x] + 100 * __clusterRelativeBlockRank();
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}

__global__ void directed(const float* x, const float* y, float* down, float* up, float* zero) {
  const int i = threadIdx.x;
  down[4 * i] = __fadd_rd(x[i], y[i]), down[4 * i + 1] = __fmul_rd(x[i], y[i]);
  down[4 * i + 2] = __frcp_rd(y[i]), down[4 * i + 3] = __int2float_rd(__float_as_int(x[i]));
  up[4 * i] = __fadd_ru(x[i], y[i]), up[4 * i + 1] = __fmul_ru(x[i], y[i]);
  up[4 * i + 2] = __frcp_ru(y[i]), up[4 * i + 3] = __int2float_ru(__float_as_int(x[i]));
  zero[4 * i] = __fadd_rz(x[i], y[i]), zero[4 * i + 1] = __fmul_rz(x[i], y[i]);
  zero[4 * i + 2] = __fdiv_rz(1.0f, y[i]), zero[4 * i + 3] = __int2float_rz(__float_as_int(x[i]));
}

__global__ void inverses(const double* p, double* back) {
  const double x = p[threadIdx.x];
  back[2 * threadIdx.x] = erf(erfinv(x));
  back[2 * threadIdx.x + 1] = normcdf(normcdfinv((x + 1) / 2)) * 2 - 1;
}
