// tf32: warptiled's tiles multiplied on the tensor cores, operands rounded to 10 bits of mantissa.
#include "gemm.cuh"
#include "ptx.cuh"

constexpr int THREADS = (TILE / RESULTS) * (TILE / RESULTS), DEPTH = 2 * lanes_of<ELEMENT>;
constexpr int PITCH = TILE + 8;  // the eight groups and four members of a warp read 32 different banks
constexpr int WARP_Y = 8 * RESULTS, WARP_X = 4 * RESULTS;

using Sums = float[WARP_Y / 16][WARP_X / 8][4];

template <bool A_ALONG_K, bool B_ALONG_K>
__device__ inline void accumulate(
    Sums& sum, const Operand& a, const Operand& b, int y, int x, Corner first, float (&a_tile)[2][DEPTH * PITCH],
    float (&b_tile)[2][DEPTH * PITCH]
) {
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
    Stage<TILE, DEPTH, THREADS, PITCH, A_ALONG_K> a_stage{{a, first.m}};
    Stage<TILE, DEPTH, THREADS, PITCH, B_ALONG_K> b_stage{{b, first.n}};
    a_stage.load(), b_stage.load();
    a_stage.store(a_tile[0]), b_stage.store(b_tile[0]);
    __syncthreads();
    for (int start = 0, now = 0; start < a.depth; start += DEPTH, now ^= 1) {
        const bool more = start + DEPTH < a.depth;
        if (more) a_stage.load(), b_stage.load();  // under way while this tile is multiplied
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            const float* a_low = a_tile[now] + (k + member) * PITCH + y + group;
            const float* b_low = b_tile[now] + (k + member) * PITCH + x + group;
            unsigned right[WARP_X / 8][2];
#pragma unroll
            for (int j = 0; j < WARP_X / 8; ++j) {
                right[j][0] = to_tf32(b_low[j * 8]), right[j][1] = to_tf32(b_low[4 * PITCH + j * 8]);
            }
#pragma unroll
            for (int i = 0; i < WARP_Y / 16; ++i) {
                const float* upper = a_low + i * 16;
                const unsigned left[4] = {
                    to_tf32(upper[0]), to_tf32(upper[8]), to_tf32(upper[4 * PITCH]), to_tf32(upper[4 * PITCH + 8])
                };
#pragma unroll
                for (int j = 0; j < WARP_X / 8; ++j) mma_m16n8k8_tf32(sum[i][j], left, right[j], sum[i][j]);
            }
        }
        if (more) a_stage.store(a_tile[now ^ 1]), b_stage.store(b_tile[now ^ 1]);
        __syncthreads();  // the next tile is there, and this one has been read
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) matmul_tf32(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ __align__(16) float a_tile[2][DEPTH * PITCH];
    __shared__ __align__(16) float b_tile[2][DEPTH * PITCH];
    const Corner first = corner(blockIdx.x, M, N, TILE, TILE);
    const int warp = threadIdx.x / 32, y = warp / (TILE / WARP_X) * WARP_Y, x = warp % (TILE / WARP_X) * WARP_X;
    const Operand left{a, stride_am, stride_ak, M, K}, right{b, stride_bn, stride_bk, N, K};
    Sums sum = {};
    if (left.along_k()) {
        if (right.along_k()) accumulate<true, true>(sum, left, right, y, x, first, a_tile, b_tile);
        else accumulate<true, false>(sum, left, right, y, x, first, a_tile, b_tile);
    } else {
        if (right.along_k()) accumulate<false, true>(sum, left, right, y, x, first, a_tile, b_tile);
        else accumulate<false, false>(sum, left, right, y, x, first, a_tile, b_tile);
    }
    const int group = threadIdx.x % 32 / 4, member = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < WARP_Y / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int m = first.m + y + i * 16 + half * 8 + group;
#pragma unroll
            for (int j = 0; j < WARP_X / 8; ++j) {
                const int n = first.n + x + j * 8 + member * 2;
                if (m < M) store<2>(c + (long long)m * N, n, N, sum[i][j] + half * 2);
            }
        }
}
