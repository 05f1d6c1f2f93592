// tensorcore: 16-bit operands, products of 16 by 16 by 8 in one instruction of a warp (mma.sync).
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul_tensorcore(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    const Corner first = corner(blockIdx.x, M, N, TILE_M, TILE_N);
    Sums sum = {};
    multiply(sum, Operand{a, stride_am, stride_ak, M, K}, Operand{b, stride_bn, stride_bk, N, K}, first);
    each_span(sum, first, M, [&](int m, int n, const float* values) {
        store<SPAN>(c + (long long)m * N, n, N, values);
    });
}
