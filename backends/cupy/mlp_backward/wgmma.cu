// wgmma: the chain rule where the products of warpgroups still are in registers. ACTIVATION comes from the launcher.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

#include "activations.cuh"

// z = a b + bias and c = act(z), rows of both `pitch` apart.
extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) mlp_backward_wgmma_forward(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap z_map,
    const __grid_constant__ TensorMap c_map, ELEMENT* z, ELEMENT* c, int pitch, const ELEMENT* bias,
    long long stride_bias, int M, int N, int K
) {
    products(a, b, b, M, N, K, [&](Sums& sum, int m, int n, ELEMENT (&strips)[STRIPS][STRIP]) {
        const int first = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int col = first + j * 8 + i;
                const float shift = bias && col < N ? to_float(bias[col * stride_bias]) : 0.0f;
                sum[j][i] += shift, sum[j][i + 2] += shift;
            }
        }
        store(sum, z_map, z, m, n, M, N, pitch, strips);
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[j][i] = activate_rounded<ACTIVATION>(sum[j][i]);
        }
        store(sum, c_map, c, m, n, M, N, pitch, strips);
    });
}

// c = (a b) act'(z); rows of c and of z, `pitch` apart, begin at multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) mlp_backward_wgmma_chained(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
    const ELEMENT* z, long long pitch, int M, int N, int K
) {
    products(a, b, b, M, N, K, [&](Sums& sum, int m, int n, ELEMENT (&strips)[STRIPS][STRIP]) {
        const int row = m + threadIdx.x % 32 / 4, first = n + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int col = first + j * 8;
                const ELEMENT* at = z + (row + i * 4) * pitch + col;
                ELEMENT pair[2] = {};
                if (row + i * 4 < M && col + 1 < N) {
                    const unsigned both = *reinterpret_cast<const unsigned*>(at);
                    memcpy(pair, &both, 4);
                } else if (row + i * 4 < M && col < N) {
                    pair[0] = *at;
                }
                sum[j][i] *= slope_inline(to_float(pair[0]), ACTIVATION);
                sum[j][i + 1] *= slope_inline(to_float(pair[1]), ACTIVATION);
            }
        }
        store(sum, c_map, m, n, strips);
    });
}
