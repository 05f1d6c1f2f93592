// A file as people publish them: host code, libraries that are not there, kernels by macros and in namespaces.
#include <cublas_v2.h>
#include <torch/extension.h>

#include <cassert>
#include <chrono>
#include <iostream>
#include <vector>
#if __CUDA_ARCH__ >= 800 && defined(__CUDACC__)
#define WIDE 4
#endif
#define CHECK(call) if ((call) != cudaSuccess) { std::cerr << "failed" << std::endl; exit(1); }
#define SCALE(name, type) \
  __global__ void name(type* x, type by, int n) { \
    int i = blockIdx.x * blockDim.x + threadIdx.x; \
    if (i < n) x[i] *= by; \
  }
using namespace std::chrono;
const int ROWS = 3;
static std::vector<float> results;
cublasHandle_t handle;

struct Options {
  std::string name;
  int rows = ROWS;
  void read(int argc, char** argv) { name = argv[1]; }
};
struct Pair {
  float low, high;
  Pair(std::pair<float, float> from) : low(from.first), high(from.second) {}
  __host__ __device__ float sum() const { return low + high; }
  void print() const { std::cout << low; }
};
namespace inner {
template <typename T, int N>
__device__ T total(const T (&x)[N]) {
  T out = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) out += x[i];
  return out;
}
__global__ void rows(const float4* __restrict__ x, float* y, Pair shift) {
  const float4 v = x[threadIdx.x];
  const float parts[WIDE] = {v.x, v.y, v.z, v.w};
  y[threadIdx.x] = total(parts) + shift.sum() + ROWS;
}
}  // namespace inner
SCALE(scale, float)
template <typename T>
__global__ void fill(T* x, T value) {
  x[threadIdx.x] = value;
}
__global__ void checked(const int* x, long long* ticks) {
  const long long begin = clock64();
  assert(x[threadIdx.x] >= 0);  // LINE assert
  if (threadIdx.x == 0) printf("%d of %s\n", blockDim.x, "threads");
  ticks[threadIdx.x] = clock64() - begin + (clock() > 0);
}
__global__ void unknown(float* x) {
#ifdef __CUDA_ARCH__
  asm volatile("tcgen05.fence::before_thread_sync;\n" ::: "memory");  // LINE ptx
#endif
  x[0] = 1.0f;
}
int main(int argc, char** argv) {
  auto start = high_resolution_clock::now();
  float* x;
  CHECK(cudaMalloc(&x, 128));
  scale<<<1, 32>>>(x, 2.0f, 32);
  fill<float><<<dim3(1), dim3(32), 0, 0>>>(x, 1.0f);
  inner::rows<<<1, 32>>>(nullptr, x, Pair({1.0f, 2.0f}));
  std::cout << duration_cast<milliseconds>(high_resolution_clock::now() - start).count() << std::endl;
  return 0;
}
