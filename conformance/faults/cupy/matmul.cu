#include "common.cuh"

enum Fault {
    none,
    no_barrier_before_use,
    no_barrier_after_use,
    early_return,
    tile_row_overrun,
    unfilled_tile,
    load_unguarded,
    store_unguarded,
    k_tail_dropped,
    offset_int,
    stride_of_a_for_b,
    narrow_accumulator,
    splits_add_without_atomic,
    splits_overlap,
    lanes_left_out,
    shuffle_width,
    absent_lanes_summed,
};

constexpr int tile = 16;

// A block of 16 x 16 threads makes a tile of c.
extern "C" __global__ void matmul_tiled(const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
                                        long long a_row, long long a_col, long long b_row, long long b_col,
                                        int fault) {
    __shared__ float tile_a[tile][tile];
    __shared__ float tile_b[tile][tile];
    const int x = threadIdx.x, y = threadIdx.y;
    const int across = (N + tile - 1) / tile;
    const int m = int(blockIdx.x / across) * tile + y, n = int(blockIdx.x % across) * tile + x;
    if (fault == early_return && (m >= M || n >= N)) return;

    const ELEMENT* row_of_a = a + m * a_row;
    if (fault == offset_int) row_of_a = a + m * int(a_row);
    if (fault == stride_of_a_for_b) b_row = a_row;
    const int steps = fault == k_tail_dropped ? K / tile : (K + tile - 1) / tile;

    float acc = 0.0f;
    for (int step = 0; step < steps; ++step) {
        const int k_a = step * tile + x, k_b = step * tile + y;
        const bool inside_a = m < M && (k_a < K || fault == load_unguarded);
        const bool inside_b = n < N && (k_b < K || fault == load_unguarded);
        if (inside_a) tile_a[y][x] = to_float(row_of_a[k_a * a_col]);
        if (inside_b) tile_b[y][x] = to_float(b[k_b * b_row + n * b_col]);
        if (fault != unfilled_tile) {
            if (!inside_a) tile_a[y][x] = 0.0f;
            if (!inside_b) tile_b[y][x] = 0.0f;
        }

        if (fault != no_barrier_before_use) __syncthreads();
        const int end = fault == tile_row_overrun ? tile + 1 : tile;
        for (int k = 0; k < end; ++k) {
            acc += tile_a[y][k] * tile_b[k][x];
            if (fault == narrow_accumulator) acc = to_float(from_float<ELEMENT>(acc));
        }
        if (fault != no_barrier_after_use) __syncthreads();
    }
    if (m < M && (n < N || fault == store_unguarded)) c[(long long)m * N + n] = from_float<ELEMENT>(acc);
}

// blockIdx.y takes a part of k and adds its products to c, which was 0.
extern "C" __global__ void matmul_splitk(const ELEMENT* a, const ELEMENT* b, float* c, int M, int N, int K,
                                         long long a_row, long long a_col, long long b_row, long long b_col,
                                         int fault) {
    const int across = (N + tile - 1) / tile;
    const long long m = blockIdx.x / across * tile + threadIdx.y, n = blockIdx.x % across * tile + threadIdx.x;
    if (m >= M || n >= N) return;
    const int length = (K + gridDim.y - 1) / gridDim.y;
    const int start = min(K, int(blockIdx.y) * length);
    int end = min(K, start + length);
    if (fault == splits_overlap) end = min(K, end + 1);

    float acc = 0.0f;
    for (int k = start; k < end; ++k) acc += to_float(a[m * a_row + k * a_col]) * to_float(b[k * b_row + n * b_col]);
    if (fault == splits_add_without_atomic)
        c[m * N + n] += acc;
    else
        atomicAdd(c + m * N + n, acc);
}

// A warp makes one element of c.
extern "C" __global__ void matmul_dot(const ELEMENT* a, const ELEMENT* b, ELEMENT* c, int M, int N, int K,
                                      long long a_row, long long a_col, long long b_row, long long b_col, int fault) {
    __shared__ float products[32];
    const long long element = blockIdx.x + (long long)blockIdx.y * gridDim.x;
    const long long m = element / N, n = element % N;
    const int lane = threadIdx.x;
    float acc = 0.0f;
    for (int k = lane; k < K; k += 32) acc += to_float(a[m * a_row + k * a_col]) * to_float(b[k * b_row + n * b_col]);

    if (fault == absent_lanes_summed) {
        // A sum through memory, written for 32 lanes, of which only those with a product take part.
        if (lane < K) products[lane] = acc;
        __syncwarp();
        acc = 0.0f;
        for (int i = 0; i < 32; ++i) acc += products[i];
    } else if (fault != lanes_left_out || lane < K) {
        const int width = fault == shuffle_width ? 16 : 32;
        for (int step = 16; step > 0; step /= 2) acc += __shfl_down_sync(all_lanes, acc, step, width);
    }
    if (lane == 0) c[element] = from_float<ELEMENT>(acc);
}
