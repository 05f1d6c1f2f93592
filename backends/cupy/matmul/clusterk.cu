// clusterk: the blocks of a cluster cut a tile's k among them, and add their sums through each other's shared memory.
// With few rows of c the product is made transposed (SWAPPED): 128 columns of b are the rows of a tile, which has TILE_N
// rows of a, 16 to 256, hardly more than there are: what lies outside of a takes the copy engine longer than a itself.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

constexpr int C_ROWS = SWAPPED ? COLS : TILE_M, C_COLS = SWAPPED ? TILE_M : COLS;  // of c in a tile
constexpr int PITCH = C_COLS + (SWAPPED ? 4 : 8);  // of sums in shared memory: no bank is met twice
constexpr int CONSUMERS = 32 * WARPS, AT_ONCE = TILE_N <= 64 && SWAPPED ? 2 : 1;  // blocks of a multiprocessor

struct Ring {
    ELEMENT stages[STAGES][STAGE];
    Barrier full[STAGES], empty[STAGES];
};

// This block's part of its cluster's tile: there are no fewer steps of k than PARTS, so that each has one. CLUSTER counts
// the blocks that share operands, here 1.
struct Part {
    Tiles tile;
    int at, end;

    __device__ Part(int M, int N, int K) : tile(SWAPPED ? N : M, SWAPPED ? M : N, K) {
        const long long steps = (K + DEPTH - 1) / DEPTH, part = blockIdx.x % PARTS;
        tile.number = blockIdx.x / PARTS, at = part * steps / PARTS * DEPTH;
        end = min(K, int((part + 1) * steps / PARTS * DEPTH));
    }

    __device__ bool more() const { return at < end; }
    __device__ void next() { at = end; }
    __device__ int first() const { return at; }
    __device__ int last() const { return end; }
    __device__ int m() const { return tile.m(); }
    __device__ int n() const { return tile.n(); }
};

// Keeps the sums of a warp's 16 rows, from `row` of the tile on, as they are in c, for all blocks of the cluster.
__device__ inline void keep(const Sums& sum, float* sums, int row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int y = row + lane / 4 + i / 2 * 8, x = j * 8 + lane % 4 * 2 + i % 2;
            sums[SWAPPED ? x * PITCH + y : y * PITCH + x] = sum[j][i];
        }
}

// Adds up what the blocks keep, in the order of k: each block its share of the tile, of c (M, N) from row m and column
// n on.
__device__ inline void add_parts(const float* sums, ELEMENT* c, int m, int n, int M, int N) {
    constexpr int FOURS = C_COLS / 4;
    const int thread = blockIdx.x % PARTS * CONSUMERS + threadIdx.x - (THREADS - CONSUMERS);
    for (int i = thread; i < min(C_ROWS, M - m) * FOURS; i += PARTS * CONSUMERS) {
        const int row = i / FOURS, col = i % FOURS * 4;
        float4 parts[PARTS];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) parts[part] = cluster_load(sums + row * PITCH + col, part);
        float sum[4] = {};
#pragma unroll
        for (const float4& part : parts) sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
        ELEMENT* target = c + (long long)(m + row) * N + n + col;
        if (N % 4 == 0 && n + col < N) {
            *reinterpret_cast<uint2*>(target) = {rounded(sum), rounded(sum + 2)};
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (n + col + j < N) target[j] = from_float<ELEMENT>(sum[j]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE) __cluster_dims__(PARTS, 1, 1) matmul_clusterk(
    const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right, ELEMENT* c, int M, int N, int K
) {
    static_assert(C_ROWS * PITCH * sizeof(float) <= sizeof(Ring::stages), "the sums take the place of the ring");
    Ring& shared = begun<Ring>();
    float* sums = reinterpret_cast<float*>(shared.stages);
    const Part part(M, N, K);
    if (threadIdx.x < THREADS - CONSUMERS) {
        if (AT_ONCE == 1) give_registers<24>();
        if (threadIdx.x == 0) load(left, right, right, part, shared);
        cluster_arrive(), cluster_wait();
    } else {
        if (AT_ONCE == 1) take_registers<REGISTERS>();
        multiply_all(part, shared, [&](const Sums& sum, const Part&, int, int warp) {
            sync_threads<CONSUMERS>(1);  // both warpgroups have read the ring
            keep(sum, sums, warp * 16);
        });
        cluster_arrive(), cluster_wait();  // all blocks' sums are there
        add_parts(sums, c, SWAPPED ? part.n() : part.m(), SWAPPED ? part.m() : part.n(), M, N);
    }
    cluster_arrive(), cluster_wait();  // no block leaves while others read its sums
}
