// splitk: several blocks share a tile of c, each with its own part of K; a second kernel adds their sums.
#include "warptile.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) matmul_splitk(
    const ELEMENT* a, const ELEMENT* b, float* partial, int M, int N, int K, int chunk,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    const int tiles = ((M + TILE_M - 1) / TILE_M) * ((N + TILE_N - 1) / TILE_N);
    const int split = blockIdx.x / tiles, start = split * chunk, depth = min(K - start, chunk);
    const Corner first = corner(blockIdx.x % tiles, M, N, TILE_M, TILE_N);
    const Operand a_part{a + start * stride_ak, stride_am, stride_ak, M, depth};
    const Operand b_part{b + start * stride_bk, stride_bn, stride_bk, N, depth};
    Sums sum = {};
    multiply(sum, a_part, b_part, first);
    each_span(sum, first, M, [&](int m, int n, const float* values) {
        float* row = partial + ((long long)split * M + m) * N;
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            if (n + j < N) row[n + j] = values[j];
        }
    });
}

extern "C" __global__ void matmul_add_partials(const float* partial, ELEMENT* c, long long size, int splits) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    float sum = 0.0f;
    for (int split = 0; split < splits; ++split) sum += partial[split * size + i];  // one order: one answer
    c[i] = from_float<ELEMENT>(sum);
}
