// naive, coalesced: a thread for each element of c.
#include "common.cuh"

extern "C" __global__ void matmul_naive(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    const int tiles_n = (N + blockDim.y - 1) / blockDim.y;
    const int m = blockIdx.x / tiles_n * blockDim.x + threadIdx.x;  // neighbours in a warp are rows apart
    const int n = blockIdx.x % tiles_n * blockDim.y + threadIdx.y;
    if (m >= M || n >= N) return;
    const ELEMENT* a_row = a + m * stride_am;
    const ELEMENT* b_col = b + n * stride_bn;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += to_float(a_row[k * stride_ak]) * to_float(b_col[k * stride_bk]);
    c[(long long)m * N + n] = from_float<ELEMENT>(sum);
}

extern "C" __global__ void matmul_coalesced(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    const int tiles_n = (N + blockDim.x - 1) / blockDim.x;
    const int m = blockIdx.x / tiles_n * blockDim.y + threadIdx.y;
    const int n = blockIdx.x % tiles_n * blockDim.x + threadIdx.x;  // neighbours in a warp are neighbours in b and in c
    if (m >= M || n >= N) return;
    const ELEMENT* a_row = a + m * stride_am;
    const ELEMENT* b_col = b + n * stride_bn;
    float sum = 0.0f;
    for (int k = 0; k < K; ++k) sum += to_float(a_row[k * stride_ak]) * to_float(b_col[k * stride_bk]);
    c[(long long)m * N + n] = from_float<ELEMENT>(sum);
}
