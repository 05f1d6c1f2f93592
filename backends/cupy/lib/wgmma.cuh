// Products on Hopper: one warpgroup keeps a ring of tiles filled by the copy engine, others multiply them straight from
// shared memory, and blocks stay for as many tiles of c as fall to them. TILE_M, TILE_N, STAGES, CLUSTER, GROUP,
// A_ALONG_K and B_ALONG_K come from the launcher (gemm.py: by_warpgroups); ELEMENT is a 16-bit type. TOGETHER matrices b
// of one shape share a tile, each with COLS of its columns, the same ones.
#pragma once
#include "hopper.cuh"

constexpr int DEPTH = 64, COLS = TILE_N / TOGETHER;
constexpr int WARPS = TILE_M / 16, THREADS = 128 + WARPS * 32;  // a warpgroup that loads, then one for every 64 rows
constexpr int REGISTERS = WARPS == 8 ? 240 : 160;  // of a thread that multiplies
constexpr int SIDE = 64, BOX = SIDE * SIDE;     // the copy engine brings squares, rows of 128 bytes
constexpr int A_TILE = TILE_M * DEPTH, STAGE = A_TILE + TILE_N * DEPTH;  // elements
constexpr int STRIP = 16 * SIDE, STRIPS = WARPS == 8 ? 2 : 1;  // what a warp stores at once, how many are under way
constexpr int STEP = 16;                        // of k, in one instruction
// A tile of other than whole squares of columns, as 160: two instructions, and b in one copy, whose rows run along k.
constexpr int WIDE = TILE_N <= SIDE ? TILE_N : TILE_N / SIDE * SIDE, NARROW = TILE_N - WIDE;
constexpr int PIECE = NARROW || TILE_N < SIDE ? TILE_N : SIDE;  // columns of b that are copied at once

struct Shared {
    ELEMENT stages[STAGES][STAGE];  // a's squares down m, then b's along n
    ELEMENT strips[WARPS][STRIPS][STRIP];
    Barrier full[STAGES];   // the copy engine has brought all bytes
    Barrier empty[STAGES];  // all warps that multiply, of all blocks that the bytes went to, have read them
};

// The tiles of c of a block. Blocks of a cluster take neighbours down m, which share b; clusters go down GROUP rows of
// tiles before they go right, so that those in flight share operands in L2.
struct Tiles {
    int rows, cols, K, number;

    __device__ Tiles(int M, int N, int K) : K(K) {
        rows = (M + CLUSTER * TILE_M - 1) / (CLUSTER * TILE_M), cols = (N + COLS - 1) / COLS;
        number = blockIdx.x / CLUSTER;
    }

    __device__ bool more() const { return number < rows * cols; }
    __device__ void next() { number += gridDim.x / CLUSTER; }

    // The first k, and the one behind the last, whose products are added up.
    __device__ int first() const { return 0; }
    __device__ int last() const { return K; }

    __device__ int m() const {
        const int top = number / (GROUP * cols) * GROUP, height = min(rows - top, GROUP);
        return ((top + number % (GROUP * cols) % height) * CLUSTER + blockIdx.x % CLUSTER) * TILE_M;
    }

    __device__ int n() const {
        const int top = number / (GROUP * cols) * GROUP, height = min(rows - top, GROUP);
        return number % (GROUP * cols) / height * COLS;
    }
};

// One thread: fills the ring. Each block of a cluster loads its a, and its share of the tile's b for all of them.
template <typename Work, typename Shared>
__device__ inline void load(
    const TensorMap& a, const TensorMap& even, const TensorMap& odd, Work tile, Shared& shared
) {
    constexpr int ALL = (1 << CLUSTER) - 1;
    Slot<STAGES> slot;
    for (; tile.more(); tile.next()) {
        const int m = tile.m(), n = tile.n(), last = tile.last();
        for (int k = tile.first(); k < last; k += DEPTH, slot.next()) {
            Barrier* full = &shared.full[slot.stage];
            ELEMENT* stage = shared.stages[slot.stage];
            barrier_wait(&shared.empty[slot.stage], slot.parity ^ 1);
            barrier_expect(full, STAGE * sizeof(ELEMENT));
#pragma unroll
            for (int i = 0; i < TILE_M; i += SIDE) {
                copy_in(stage + i * DEPTH, a, A_ALONG_K ? k : m + i, A_ALONG_K ? m + i : k, full);
            }
#pragma unroll
            for (int i = 0; i < TILE_N; i += CLUSTER * PIECE) {
                const int j = i + blockIdx.x % CLUSTER * PIECE;
                if (j >= TILE_N) break;
                ELEMENT* square = stage + A_TILE + j * DEPTH;
                const int col = n + j % COLS, x = B_ALONG_K ? k : col, y = B_ALONG_K ? col : k;
                const TensorMap& b = j < COLS ? even : odd;
                if (CLUSTER > 1) copy_in(square, b, x, y, full, ALL);
                else copy_in(square, b, x, y, full);
            }
        }
    }
}

using Sums = float[TILE_N / 8][4];

template <int from, int count>
__device__ inline void multiply_columns(Sums& sum, unsigned long long a, unsigned long long b) {
    if constexpr (count > 0) {
        wgmma<A_ALONG_K, B_ALONG_K>(reinterpret_cast<float(&)[count / 8][4]>(sum[from / 8]), a, b, ELEMENT());
    }
}

// sum += this warpgroup's rows of the stage's a times its b.
__device__ inline void multiply(Sums& sum, const ELEMENT* stage, int warpgroup) {
    constexpr int NEXT = BOX * sizeof(ELEMENT);                         // from 64 columns to the next
    constexpr int ALONG = STEP * sizeof(ELEMENT), DOWN = STEP * SIDE * sizeof(ELEMENT);  // STEP of k, by layout
    const unsigned long long a = descriptor(stage + warpgroup * BOX, NEXT), b = descriptor(stage + A_TILE, NEXT);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < DEPTH / STEP; ++i) {
        const unsigned long long a_step = a + i * (A_ALONG_K ? ALONG : DOWN) / 16;
        const unsigned long long b_step = b + i * (B_ALONG_K ? ALONG : DOWN) / 16;
        multiply_columns<0, WIDE>(sum, a_step, b_step);
        multiply_columns<WIDE, NARROW>(sum, a_step, b_step + WIDE / SIDE * NEXT / 16);
    }
    wgmma_commit();
}

// This warp has read a stage: it tells each block that writes there.
__device__ inline void release(Barrier* empty) {
    const int lane = threadIdx.x % 32;
    if (CLUSTER == 1 && lane == 0) barrier_arrive(empty);
    if (CLUSTER > 1 && lane < CLUSTER) barrier_arrive(empty, lane);
}

__device__ inline unsigned rounded(const float* pair) { return pack_pair<ELEMENT>(pair[0], pair[1]); }

// This warp's 16 rows from row m on, by the copy engine: 64 columns at a time through shared memory, swizzled.
__device__ inline void store(
    const float (*sum)[4], const TensorMap& c, int m, int n, ELEMENT (&strips)[STRIPS][STRIP]) {
    const int lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
#pragma unroll
    for (int strip = 0; strip < COLS / SIDE; ++strip) {
        ELEMENT* target = strips[strip % STRIPS];
        if (lane == 0) strip ? copy_out_wait<STRIPS - 1>() : copy_out_wait<0>();  // tiles may have an odd number
        __syncwarp();  // the copy engine has read what is replaced
#pragma unroll
        for (int i = 0; i < SIDE / 16; ++i) {
            const float(*left)[4] = sum + strip * SIDE / 8 + i * 2, (*right)[4] = left + 1;
            stmatrix_x4(
                target + row * SIDE + ((i * 2 + half) ^ row % 8) * 8, rounded(*left), rounded(*left + 2),
                rounded(*right), rounded(*right + 2)
            );
        }
        async_fence();
        __syncwarp();
        if (lane == 0) copy_out(c, n + strip * SIDE, m, target), copy_out_commit();
    }
}

// The same where rows of c, N apart, do not begin at multiples of 16 bytes.
__device__ inline void store(const float (*sum)[4], ELEMENT* c, int m, int n, int M, int N) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = m + lane / 4 + i / 2 * 8, col = n + j * 8 + lane % 4 * 2 + i % 2;
            if (row < M && col < N) c[(long long)row * N + col] = from_float<ELEMENT>(sum[j][i]);
        }
}

// This warp's 16 rows from row m on of c (M, N), whose rows are `pitch` apart.
__device__ inline void store(
    const float (*sum)[4], const TensorMap& c_map, ELEMENT* c, int m, int n, int M, int N, int pitch,
    ELEMENT (&strips)[STRIPS][STRIP]
) {
    if (pitch % 8 == 0) store(sum, c_map, m, n, strips);
    else store(sum, c, m, n, M, N);
}

// The block's memory, with barriers that the other blocks of its cluster can use: for all threads, before all else.
template <typename Shared> __device__ inline Shared& begun() {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(&shared.full[stage], 1), barrier_init(&shared.empty[stage], WARPS * CLUSTER);
        }
        barrier_init_fence();
    }
    cluster_arrive(), cluster_wait();  // the barriers are there, also for the other blocks
    return shared;
}

// The work of the warpgroups that multiply: finish(sum, tile, m, warp) has the sums of a warp's 16 rows from row m
// on, of `even` from column tile.n() on and then of `odd`.
template <typename Work, typename Shared, typename Finish>
__device__ inline void multiply_all(const Work& work, Shared& shared, const Finish& finish) {
    const int warpgroup = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
    Slot<STAGES> slot;
    for (Work tile = work; tile.more(); tile.next()) {
        Sums sum = {};
        const int first = tile.first(), last = tile.last();
        for (int k = first, previous = 0; k < last; k += DEPTH, previous = slot.stage, slot.next()) {
            barrier_wait(&shared.full[slot.stage], slot.parity);
            multiply(sum, shared.stages[slot.stage], warpgroup);
            wgmma_wait<1>();
            if (k > first) release(&shared.empty[previous]);
        }
        wgmma_wait<0>();
        wgmma_settle(sum);
        if (first < last) release(&shared.empty[(slot.stage + STAGES - 1) % STAGES]);
        finish(sum, tile, tile.m() + warp * 16, warp);
    }
}

// All of a block's work: Tiles, or what has its members; finish(sum, tile, m, strips) as above, with two strips of the
// warp for `store`. Inlined whole: the maps have to stay the kernel's parameters.
template <typename Work, typename Finish>
__device__ inline void work_on(
    const Work& work, const TensorMap& a, const TensorMap& even, const TensorMap& odd, const Finish& finish
) {
    Shared& shared = begun<Shared>();
    if (threadIdx.x < 128) {
        give_registers<24>();
        if (threadIdx.x == 0) load(a, even, odd, work, shared);
    } else {
        take_registers<REGISTERS>();
        multiply_all(work, shared, [&](Sums& sum, const Work& tile, int m, int warp) {
            finish(sum, tile, m, shared.strips[warp]);
        });
        copy_out_wait<0>();
    }
    cluster_arrive(), cluster_wait();  // no block leaves while others write to its shared memory
}

// The whole tiles of a product (M, K) by (K, N); finish(sum, m, n, strips) as above.
template <typename Finish>
__device__ inline void products(
    const TensorMap& a, const TensorMap& even, const TensorMap& odd, int M, int N, int K, const Finish& finish
) {
    const auto whole = [&](Sums& sum, const Tiles& tile, int m, ELEMENT (&strips)[STRIPS][STRIP]) {
        finish(sum, m, tile.n(), strips);
    };
    work_on(Tiles(M, N, K), a, even, odd, whole);
}
