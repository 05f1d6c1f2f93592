// out (B, heads, M, N) = a (B, heads, M, K) · b (B, heads, K, N) on tensor cores; what heads or batches share has a
// stride of 0.
#include "mma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) mla_tile_product(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* out, long long a_b, long long a_h, long long a_m, long long a_k,
    long long b_b, long long b_h, long long b_k, long long b_n, int heads, int M, int K, int N, int tiles) {
    const long long pair = blockIdx.x / tiles;
    const Operand left{a + pair / heads * a_b + pair % heads * a_h, a_m, a_k, M, K};
    const Operand right{b + pair / heads * b_b + pair % heads * b_h, b_n, b_k, N, K};
    const Corner first = corner(blockIdx.x % tiles, M, N, TILE_M, TILE_N);
    Sums sum = {};
    multiply(sum, left, right, first);
    each_span(sum, first, M, [&](int m, int n, const float* values) {
        store<SPAN>(out + (pair * M + m) * N, n, N, values);
    });
}
