// hidden = act(x gate) (x up) on the product that the including file brings: warptile.cuh or mma.cuh. A tile of TILE_N
// columns is PAIR of gate, PAIR of up, PAIR of gate and so on, so that one thread has both results of its columns.
#pragma once
#include "activations.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) gated_mlp_gate_up(
    const ELEMENT* x, const ELEMENT* gate, const ELEMENT* up, ELEMENT* hidden, int M, int H, int D,
    long long stride_xm, long long stride_xd, long long stride_gd, long long stride_gh, long long stride_ud,
    long long stride_uh, int activation
) {
    const Corner first = corner(blockIdx.x, M, H, TILE_M, TILE_N / 2);
    const Operand even{gate, stride_gh, stride_gd, H, D}, odd{up, stride_uh, stride_ud, H, D};
    Sums sum = {};
    multiply(sum, Operand{x, stride_xm, stride_xd, M, D}, even, odd, first);
    each_pair(sum, first, M, [&](int m, int h, const float* gates, const float* ups) {
        float result[SPAN];
#pragma unroll
        for (int j = 0; j < SPAN; ++j) result[j] = activate(gates[j], activation) * ups[j];
        store<SPAN>(hidden + (long long)m * H, h, H, result);
    });
}
