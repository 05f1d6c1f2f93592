// wgmma: gate and up side by side on warpgroups. ACTIVATION comes from the launcher.
constexpr int TOGETHER = 2;
#include "wgmma.cuh"

#include "activations.cuh"

// hidden = act(x gate) (x up), rows of hidden on 16 bytes.
extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) gated_mlp_wgmma(
    const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap gate, const __grid_constant__ TensorMap up,
    const __grid_constant__ TensorMap hidden_map, ELEMENT* hidden, int M, int H, int D
) {
    products(x, gate, up, M, H, D, [&](Sums& sum, int m, int h, ELEMENT (&strips)[STRIPS][STRIP]) {
#pragma unroll
        for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[j][i] = activate_rounded<ACTIVATION>(sum[j][i]) * sum[j + COLS / 8][i];
            }
        store(sum, hidden_map, m, h, strips);
    });
}
