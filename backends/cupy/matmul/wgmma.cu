// wgmma: tiles that the copy engine brings, multiplied by warpgroups.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) matmul_wgmma(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
    ELEMENT* c, int M, int N, int K
) {
    products(a, b, b, M, N, K, [&](const Sums& sum, int m, int n, ELEMENT (&strips)[STRIPS][STRIP]) {
        store(sum, c_map, c, m, n, M, N, N, strips);
    });
}
