// streamk: fewer tiles than multiprocessors, cut along k, so that every cluster of blocks has as many steps.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

// All tiles laid end to end, `steps` steps of k each, in as many equal spans as there are clusters.
struct Spans {
    int tiles, steps, clusters;

    __device__ int begin(int cluster) const { return (long long)cluster * tiles * steps / clusters; }

    // The cluster that takes a step: the last one that begins no later.
    __device__ int owner(int step) const { return ((step + 1LL) * clusters - 1) / (tiles * steps); }
};

// A cluster's span, a tile or a piece of one at a time.
struct Pieces {
    Spans spans;
    Tiles tile;
    int at, end;

    __device__ Pieces(int M, int N, int K)
        : spans{0, (K + DEPTH - 1) / DEPTH, int(gridDim.x / CLUSTER)}, tile(M, N, K) {
        spans.tiles = tile.rows * tile.cols;
        at = spans.begin(tile.number), end = spans.begin(tile.number + 1);
        tile.number = at / spans.steps;
    }

    __device__ int step() const { return at % spans.steps; }
    __device__ int steps() const { return min(spans.steps - step(), end - at); }
    __device__ bool whole() const { return steps() == spans.steps; }

    __device__ bool more() const { return at < end; }
    __device__ void next() { at += steps(), tile.number = at / spans.steps; }
    __device__ int first() const { return step() * DEPTH; }
    __device__ int last() const { return min(tile.K, (step() + steps()) * DEPTH); }
    __device__ int m() const { return tile.m(); }
    __device__ int n() const { return tile.n(); }
};

// Where this block keeps the sums of a piece of a tile. A cluster has two such at most: one that does not begin with its
// tile, and one that does and is not finished.
__device__ inline float* kept(float* partial, int cluster, bool begun) {
    return partial + ((2LL * cluster + begun) * CLUSTER + blockIdx.x % CLUSTER) * TILE_M * COLS;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) matmul_streamk(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
    ELEMENT* c, float* partial, int M, int N, int K
) {
    work_on(Pieces(M, N, K), a, b, b, [&](const Sums& sum, const Pieces& piece, int m, auto& strips) {
        if (piece.whole()) return store(sum, c_map, c, m, piece.n(), M, N, N, strips);
        const int lane = threadIdx.x % 32;
        float* tile = kept(partial, blockIdx.x / CLUSTER, piece.step() == 0) + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m + lane / 4 + half * 8;
            if (row >= M) continue;
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j) {
                const float2 pair = {sum[j][half * 2], sum[j][half * 2 + 1]};
                *reinterpret_cast<float2*>(tile + (row - piece.m()) * COLS + j * 8) = pair;
            }
        }
    });
}

// Adds up the pieces of a tile, in the order of k. blockIdx.x counts tiles as the blocks above do, blockIdx.y rows of
// them, a warp for each, whose lanes have four columns.
extern "C" __global__ void matmul_add_pieces(float* partial, ELEMENT* c, int M, int N, int K, int clusters) {
    static_assert(COLS == 4 * 32, "a warp has a row");
    const Tiles tile(M, N, K);
    const Spans spans{tile.rows * tile.cols, (K + DEPTH - 1) / DEPTH, clusters};
    const int begin = tile.number * spans.steps, end = begin + spans.steps;
    const int first = spans.owner(begin), last = spans.owner(end - 1);
    const int row = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, col = threadIdx.x % 32 * 4, m = tile.m() + row;
    if (first == last || m >= M) return;  // one cluster had all of it
    const auto piece = [&](int cluster, bool begun) {
        return *reinterpret_cast<const float4*>(kept(partial, cluster, begun) + row * COLS + col);
    };
    float4 sum = piece(first, true);
#pragma unroll 4  // their addresses are known: pieces are read without waiting for those before
    for (int cluster = first + 1; cluster <= last; ++cluster) {
        const float4 more = piece(cluster, false);
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
    ELEMENT* target = c + (long long)m * N + tile.n() + col;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (tile.n() + col + i < N) target[i] = from_float<ELEMENT>(sums[i]);
}
