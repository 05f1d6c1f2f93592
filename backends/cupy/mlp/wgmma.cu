// wgmma: bias and activation where the product of warpgroups still is in registers. ACTIVATION comes from the launcher.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

#include "activations.cuh"

// c = act(a b + bias), rows of c `pitch` apart.
extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) mlp_wgmma(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
    const ELEMENT* bias, ELEMENT* c, int M, int N, int K, int pitch, long long stride_bias
) {
    products(a, b, b, M, N, K, [&](Sums& sum, int m, int n, ELEMENT (&strips)[STRIPS][STRIP]) {
        const int first = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j) {
            float shift[2] = {};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int col = first + j * 8 + i;
                if (bias && col < N) shift[i] = to_float(bias[col * stride_bias]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[j][i] = activate_rounded<ACTIVATION>(sum[j][i] + shift[i % 2]);
        }
        store(sum, c_map, c, m, n, M, N, pitch, strips);
    });
}
