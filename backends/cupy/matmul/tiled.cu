// tiled, tiled1d: operands pass through shared memory, so that a block reads each element once for all its threads.
#include "common.cuh"

constexpr int SIDE = 32;

extern "C" __global__ void __launch_bounds__(SIDE * SIDE) matmul_tiled(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ float a_tile[SIDE][SIDE];
    __shared__ float b_tile[SIDE][SIDE];
    const int tiles_n = (N + SIDE - 1) / SIDE;
    const int y = threadIdx.y, x = threadIdx.x;
    const int m = blockIdx.x / tiles_n * SIDE + y;
    const int n = blockIdx.x % tiles_n * SIDE + x;
    float sum = 0.0f;
    for (int start = 0; start < K; start += SIDE) {
        const int a_k = start + x, b_k = start + y;
        a_tile[y][x] = m < M && a_k < K ? to_float(a[m * stride_am + a_k * stride_ak]) : 0.0f;
        b_tile[y][x] = b_k < K && n < N ? to_float(b[b_k * stride_bk + n * stride_bn]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < SIDE; ++k) sum += a_tile[y][k] * b_tile[k][x];
        __syncthreads();  // everyone has read the tiles before the next ones replace them
    }
    if (m < M && n < N) c[(long long)m * N + n] = from_float<ELEMENT>(sum);
}

constexpr int TILE = 64, DEPTH = 8, RESULTS = 8, THREADS = TILE * TILE / RESULTS;

extern "C" __global__ void __launch_bounds__(THREADS) matmul_tiled1d(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ float a_tile[TILE][DEPTH];
    __shared__ float b_tile[DEPTH][TILE];
    const int tiles_n = (N + TILE - 1) / TILE;
    const int first_m = blockIdx.x / tiles_n * TILE, first_n = blockIdx.x % tiles_n * TILE;
    const int y = threadIdx.x / TILE * RESULTS, x = threadIdx.x % TILE;
    const int a_y = threadIdx.x / DEPTH, a_x = threadIdx.x % DEPTH;
    const int b_y = threadIdx.x / TILE, b_x = threadIdx.x % TILE;
    float sum[RESULTS] = {};
    for (int start = 0; start < K; start += DEPTH) {
        const int a_m = first_m + a_y, a_k = start + a_x, b_k = start + b_y, b_n = first_n + b_x;
        a_tile[a_y][a_x] = a_m < M && a_k < K ? to_float(a[a_m * stride_am + a_k * stride_ak]) : 0.0f;
        b_tile[b_y][b_x] = b_k < K && b_n < N ? to_float(b[b_k * stride_bk + b_n * stride_bn]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            const float right = b_tile[k][x];  // one load from shared memory serves RESULTS products
#pragma unroll
            for (int i = 0; i < RESULTS; ++i) sum[i] += a_tile[y + i][k] * right;
        }
        __syncthreads();
    }
    const int n = first_n + x;
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first_m + y + i;
        if (m < M && n < N) c[(long long)m * N + n] = from_float<ELEMENT>(sum[i]);
    }
}
