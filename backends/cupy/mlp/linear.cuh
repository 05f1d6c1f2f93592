// c = act(a b + bias) on the product that the including file brings: warptile.cuh or mma.cuh.
#pragma once
#include "activations.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) mlp_linear(
    const ELEMENT* a, const ELEMENT* b, const ELEMENT* bias, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn, long long stride_bias,
    int activation
) {
    const Corner first = corner(blockIdx.x, M, N, TILE_M, TILE_N);
    Sums sum = {};
    multiply(sum, Operand{a, stride_am, stride_ak, M, K}, Operand{b, stride_bn, stride_bk, N, K}, first);
    each_span(sum, first, M, [&](int m, int n, const float* values) {
        float result[SPAN];
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            const float shift = bias && n + j < N ? to_float(bias[(n + j) * stride_bias]) : 0.0f;
            result[j] = activate(values[j] + shift, activation);
        }
        store<SPAN>(c + (long long)m * N, n, N, result);
    });
}
