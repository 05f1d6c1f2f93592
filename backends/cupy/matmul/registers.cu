// tiled2d, vectorised, doublebuffered: a thread keeps RESULTS by RESULTS elements of c in registers.
#include "gemm.cuh"

constexpr int SIDE = TILE / RESULTS, THREADS = SIDE * SIDE;  // of a block
constexpr int DEPTH = 2 * lanes_of<ELEMENT>;

extern "C" __global__ void __launch_bounds__(THREADS) matmul_tiled2d(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ float a_tile[DEPTH][TILE + 1];  // a is stored transposed; + 1 spreads those stores over the banks
    __shared__ float b_tile[DEPTH][TILE];
    const int tiles_n = (N + TILE - 1) / TILE;
    const int first_m = blockIdx.x / tiles_n * TILE, first_n = blockIdx.x % tiles_n * TILE;
    const int y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;  // a thread's rows and columns are SIDE apart
    float sum[RESULTS][RESULTS] = {};
    for (int start = 0; start < K; start += DEPTH) {
        for (int at = threadIdx.x; at < TILE * DEPTH; at += THREADS) {
            const int i = at / DEPTH, k = at % DEPTH, m = first_m + i;
            a_tile[k][i] = m < M && start + k < K ? to_float(a[m * stride_am + (start + k) * stride_ak]) : 0.0f;
        }
        for (int at = threadIdx.x; at < TILE * DEPTH; at += THREADS) {
            const int k = at / TILE, j = at % TILE, n = first_n + j;
            b_tile[k][j] = start + k < K && n < N ? to_float(b[(start + k) * stride_bk + n * stride_bn]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float left[RESULTS], right[RESULTS];  // 2 RESULTS loads serve RESULTS * RESULTS products
#pragma unroll
            for (int i = 0; i < RESULTS; ++i) left[i] = a_tile[k][y + i * SIDE], right[i] = b_tile[k][x + i * SIDE];
#pragma unroll
            for (int i = 0; i < RESULTS; ++i)
#pragma unroll
                for (int j = 0; j < RESULTS; ++j) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first_m + y + i * SIDE;
#pragma unroll
        for (int j = 0; j < RESULTS; ++j) {
            const int n = first_n + x + j * SIDE;
            if (m < M && n < N) c[(long long)m * N + n] = from_float<ELEMENT>(sum[i][j]);
        }
    }
}

constexpr int PITCH = TILE + 4;  // rows stay on 16 bytes, and transposed stores meet fewer bank conflicts

extern "C" __global__ void __launch_bounds__(THREADS) matmul_vectorised(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ __align__(16) float a_tile[DEPTH * PITCH];
    __shared__ __align__(16) float b_tile[DEPTH * PITCH];
    const int tiles_n = (N + TILE - 1) / TILE;
    const int first_m = blockIdx.x / tiles_n * TILE, first_n = blockIdx.x % tiles_n * TILE;
    const int y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;  // four neighbours, and four more 4 SIDE on
    Stage<TILE, DEPTH, THREADS, PITCH, true> a_stage{{Operand{a, stride_am, stride_ak, M, K}, first_m}};
    Stage<TILE, DEPTH, THREADS, PITCH, false> b_stage{{Operand{b, stride_bn, stride_bk, N, K}, first_n}};
    float sum[RESULTS][RESULTS] = {};
    for (int start = 0; start < K; start += DEPTH) {
        a_stage.load(), b_stage.load();
        a_stage.store(a_tile), b_stage.store(b_tile);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float left[RESULTS], right[RESULTS];
#pragma unroll
            for (int i = 0; i < RESULTS; i += 4) {
                load4(left + i, a_tile + k * PITCH + y + i * SIDE);
                load4(right + i, b_tile + k * PITCH + x + i * SIDE);
            }
#pragma unroll
            for (int i = 0; i < RESULTS; ++i)
#pragma unroll
                for (int j = 0; j < RESULTS; ++j) sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first_m + y + i / 4 * 4 * SIDE + i % 4;
#pragma unroll
        for (int j = 0; j < RESULTS; j += 4) {
            if (m < M) store<4>(c + (long long)m * N, first_n + x + j * SIDE, N, &sum[i][j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, sizeof(ELEMENT) / 2) matmul_doublebuffered(
    const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
    long long stride_am, long long stride_ak, long long stride_bk, long long stride_bn
) {
    __shared__ __align__(16) float a_tile[2][DEPTH * PITCH];
    __shared__ __align__(16) float b_tile[2][DEPTH * PITCH];
    const int tiles_n = (N + TILE - 1) / TILE;
    const int first_m = blockIdx.x / tiles_n * TILE, first_n = blockIdx.x % tiles_n * TILE;
    const int y = threadIdx.x / SIDE * 4, x = threadIdx.x % SIDE * 4;
    Stage<TILE, DEPTH, THREADS, PITCH, true> a_stage{{Operand{a, stride_am, stride_ak, M, K}, first_m}};
    Stage<TILE, DEPTH, THREADS, PITCH, false> b_stage{{Operand{b, stride_bn, stride_bk, N, K}, first_n}};
    float sum[RESULTS][RESULTS] = {};
    a_stage.load(), b_stage.load();
    a_stage.store(a_tile[0]), b_stage.store(b_tile[0]);
    __syncthreads();
    for (int start = 0, now = 0; start < K; start += DEPTH, now ^= 1) {
        const bool more = start + DEPTH < K;
        if (more) a_stage.load(), b_stage.load();  // under way while this tile is multiplied
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            float left[RESULTS], right[RESULTS];
#pragma unroll
            for (int i = 0; i < RESULTS; i += 4) {
                load4(left + i, a_tile[now] + k * PITCH + y + i * SIDE);
                load4(right + i, b_tile[now] + k * PITCH + x + i * SIDE);
            }
#pragma unroll
            for (int i = 0; i < RESULTS; ++i)
#pragma unroll
                for (int j = 0; j < RESULTS; ++j) sum[i][j] += left[i] * right[j];
        }
        if (more) a_stage.store(a_tile[now ^ 1]), b_stage.store(b_tile[now ^ 1]);
        __syncthreads();  // the one barrier of a step: the next tile is there, and this one has been read
    }
#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        const int m = first_m + y + i / 4 * 4 * SIDE + i % 4;
#pragma unroll
        for (int j = 0; j < RESULTS; j += 4) {
            if (m < M) store<4>(c + (long long)m * N, first_n + x + j * SIDE, N, &sum[i][j]);
        }
    }
}
