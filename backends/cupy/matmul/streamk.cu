// streamk: tiles that do not come out even are cut along k, so that every cluster of blocks has as many steps.
constexpr int TOGETHER = 1;
#include "wgmma.cuh"

// The first `streamed` tiles laid end to end, `steps` steps of k each, in as many equal spans as there are clusters.
struct Spans {
    int streamed, steps, clusters;

    __device__ int begin(int cluster) const { return (long long)cluster * streamed * steps / clusters; }

    // The cluster that takes a step: the last one that begins no later.
    __device__ int owner(int step) const { return ((step + 1LL) * clusters - 1) / (streamed * steps); }
};

// A cluster's span, a tile or a piece of one at a time, then tiles that are whole.
struct Parts {
    Spans spans;
    Tiles tile;
    int at, end, next_whole;

    __device__ Parts(int M, int N, int K, int streamed)
        : spans{streamed, (K + DEPTH - 1) / DEPTH, int(gridDim.x / CLUSTER)}, tile(M, N, K) {
        at = spans.begin(tile.number), end = spans.begin(tile.number + 1), next_whole = streamed + tile.number;
        choose();
    }

    __device__ void choose() { tile.number = at < end ? at / spans.steps : next_whole; }
    __device__ int step() const { return at < end ? at % spans.steps : 0; }
    __device__ int steps() const { return at < end ? min(spans.steps - step(), end - at) : spans.steps; }
    __device__ bool whole() const { return steps() == spans.steps; }

    __device__ bool more() const { return tile.more(); }
    __device__ void next() {
        if (at < end) at += steps();
        else next_whole += spans.clusters;
        choose();
    }
    __device__ int first() const { return step() * DEPTH; }
    __device__ int last() const { return min(tile.K, (step() + steps()) * DEPTH); }
    __device__ int m() const { return tile.m(); }
    __device__ int n() const { return tile.n(); }
};

// Where the sums of a piece of a tile are kept. A cluster has two at most: one that does not begin with its tile, and
// one that does and is not finished.
__device__ inline float* kept(float* partial, int cluster, bool begun) {
    return partial + (2LL * cluster + begun) * CLUSTER * TILE_M * COLS + blockIdx.x % CLUSTER * TILE_M * COLS;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(CLUSTER, 1, 1) matmul_streamk(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap c_map,
    ELEMENT* c, float* partial, int M, int N, int K, int streamed
) {
    const auto finish = [&](const Sums& sum, const Parts& part, int m, ELEMENT (&strips)[STRIPS][STRIP]) {
        if (part.whole()) return store(sum, c_map, c, m, part.n(), M, N, N, strips);
        float* tile = kept(partial, blockIdx.x / CLUSTER, part.step() == 0) - (long long)part.m() * COLS;
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m + lane / 4 + half * 8;
            if (row >= M) continue;
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j) {
                const float2 pair = {sum[j][half * 2], sum[j][half * 2 + 1]};
                *reinterpret_cast<float2*>(tile + (long long)row * COLS + j * 8 + lane % 4 * 2) = pair;
            }
        }
    };
    work_on(Parts(M, N, K, streamed), a, b, b, finish);
}

// Adds up the pieces of a streamed tile, in the order of k: blockIdx.x counts those tiles, each of a block of the
// cluster, and blockIdx.y rows of them, a warp for each.
extern "C" __global__ void matmul_add_pieces(
    const float* partial, ELEMENT* c, int M, int N, int K, int streamed, int clusters
) {
    const Spans spans{streamed, (K + DEPTH - 1) / DEPTH, clusters};
    Tiles tile(M, N, K);
    const int begin = tile.number * spans.steps, first = spans.owner(begin), last = spans.owner(begin + spans.steps - 1);
    const int row = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, m = tile.m() + row;
    if (first == last || m >= M) return;  // one cluster had all of it
    for (int j = threadIdx.x % 32; j < COLS && tile.n() + j < N; j += 32) {
        float sum = 0.0f;
        for (int cluster = first; cluster <= last; ++cluster) {
            const bool begun = spans.begin(cluster) <= begin;
            sum += kept(const_cast<float*>(partial), cluster, begun)[row * COLS + j];
        }
        c[(long long)m * N + tile.n() + j] = from_float<ELEMENT>(sum);
    }
}
