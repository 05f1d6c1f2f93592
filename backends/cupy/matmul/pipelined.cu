// pipelined: operands in whole pieces of 16 bytes along the axes that the launcher names (LEFT_ALONG_K, RIGHT_ALONG_K),
// so that the main loop has no branch and the compiler spreads copies and fragments between the products.
#include "mma.cuh"
static_assert(DEPTH == 32, "a stage is two fragments deep");

template <int LENGTH, bool ALONG_K>
__device__ inline void fetch_pieces(ELEMENT* tile, Walk<LENGTH, DEPTH, THREADS, ALONG_K>& way) {
    tile += place_of<LENGTH, ALONG_K>(way.i, way.k);
#pragma unroll
    for (int piece = 0; piece < way.COUNT; ++piece) {
        ELEMENT* const place = tile + piece * way.HOP * chunks<LENGTH, ALONG_K> * CHUNK;
        cp_async_16(place, way.at(piece), way.valid(piece) > 0 ? 16 : 0);
    }
    way.next();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) matmul_pipelined(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    extern __shared__ uint4 bytes[];
    ELEMENT* stages = reinterpret_cast<ELEMENT*>(bytes);
    const Corner first = corner(blockIdx.x, M, N, TILE_M, TILE_N);
    Walk<TILE_M, DEPTH, THREADS, LEFT_ALONG_K> a_way(Operand{a, stride_am, stride_ak, M, K}, first.m);
    Walk<TILE_N, DEPTH, THREADS, RIGHT_ALONG_K> b_way(Operand{b, stride_bn, stride_bk, N, K}, first.n);
    for (int i = 0; i < STAGES; ++i) {
        fetch_pieces(stages + i * STAGE, a_way), fetch_pieces(stages + i * STAGE + A_TILE, b_way);
        cp_async_commit();
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();

    Sums sum = {};
    Fragments<LEFT_ALONG_K, RIGHT_ALONG_K> now, next;  // 16 of k each
    now.load(stages, 0);
    ELEMENT* stage = stages;
    for (int k = 0; k < K; k += DEPTH) {
        next.load(stage, 16);
        now.multiply(sum);
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // the next stage has come for all, and all have read this one
        ELEMENT* read = stage;
        stage = stage < stages + (STAGES - 1) * STAGE ? stage + STAGE : stages;
        now.load(stage, 0);  // zeros at the end
        fetch_pieces(read, a_way), fetch_pieces(read + A_TILE, b_way);
        cp_async_commit();
        next.multiply(sum);
    }
    each_span(sum, first, M, [&](int m, int n, const float* values) {
        store<SPAN>(c + (long long)m * N, n, N, values);
    });
}
