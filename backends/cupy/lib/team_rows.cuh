// Rows of clusters that stay. TEAMS teams of THREADS threads share a block, each with its part of a row in registers
// and that of its next row on its way to shared memory; teams of one number, in all blocks of a cluster, have one row.
// What all rows are multiplied by, or what is added to them, stays in shared memory.
#pragma once
#define ALIGNED 1  // the rows; KEPT_ALIGNED: the weights; WHOLE: the blocks have as many columns each
#include "staged_rows.cuh"

constexpr int part = VECTORS * THREADS;  // vectors of a row that a block holds
constexpr int warps = THREADS / 32;      // of a team
static_assert(warps * CLUSTER <= 32, "there is a lane for each warp of a row");

struct TeamRows {
    const ELEMENT* x;
    long long x_row, rows, row;        // `row`: the one whose values `next` gave
    int step, begin, own, parity = 0;  // the columns before the block's; those from there on
    uint4* place;

    __device__ inline TeamRows(const ELEMENT* x, long long x_row, long long rows, int cols, uint4* shared) :
        x_row(x_row), rows(rows), begin(blockIdx.x % CLUSTER * part * lanes), own(cols - begin),
        place(shared + threadIdx.y * part) {
        const int clusters = gridDim.x / CLUSTER;
        step = clusters * TEAMS, row = int(blockIdx.x / CLUSTER + threadIdx.y * clusters) - step;
        this->x = x + begin;
        if (threadIdx.x == 0) barrier_init(come(), 1);
        begin_in_cluster();
        send_for(row + step);
    }

    static __device__ inline Barrier* come() {
        __shared__ Barrier barriers[TEAMS];
        return &barriers[threadIdx.y];
    }

    __device__ inline void send_for(long long row) const {
        if (threadIdx.x > 0 || row >= rows) return;
        const int bytes = max(0, min(own, part * lanes)) * int(sizeof(ELEMENT));
        barrier_expect(come(), bytes);
        if (bytes > 0) copy_in_kept(place, x + row * x_row, bytes, come());
    }

    // The next row's values, zeros beyond its end.
    __device__ inline bool next(Values (&values)[VECTORS]) {
        row += step;
        if (row >= rows) return false;
        barrier_wait(come(), parity);
        parity ^= 1;
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            values[r].raw = has(r) ? place[r * THREADS + threadIdx.x] : uint4{0, 0, 0, 0};
        }
        sync_threads<THREADS>(1 + threadIdx.y);  // all have read what the next row takes the place of
        send_for(row + step);
        return true;
    }

    // Whether the thread's r-th vector is one of the row's.
    __device__ inline bool has(int r) const { return WHOLE || column(r) < own; }

    // Where the thread's vectors of that row of y begin. Hidden from the compiler, which would find it anew for each.
    __device__ inline uint4* of(ELEMENT* y, int cols) const {
        uint4* vectors = reinterpret_cast<uint4*>(y + row * cols + begin) + threadIdx.x;
#ifndef TOUCHSTONE_EMULATOR
        asm volatile("" : "+l"(vectors));
#endif
        return vectors;
    }

    // The branch is for the compiler, which without it begins with all vectors at once, and spills.
    __device__ inline void put(uint4* vectors, int r, const float (&values)[lanes]) const {
        if (column(r) < own) __stcs(vectors + r * THREADS, pack<ELEMENT>(values));
    }
};

// By all threads of a block: its columns of a weight of any stride to shared memory, zeros beyond its end.
__device__ inline void keep(uint4* shared, const ELEMENT* weight, long long stride, int cols) {
    for (int i = threadIdx.y * THREADS + threadIdx.x; i < part; i += TEAMS * THREADS) {
        if constexpr (KEPT_ALIGNED) {
            shared[i] = load_vector<lanes>(weight, stride, i * lanes, cols).raw;
        } else {
            shared[i] = load_elements(weight, stride, i * lanes, cols);
        }
    }
}

// From `values` of each warp: those of the row's warp whose number is the lane's; zeros where there is none.
template <int count> __device__ inline void exchange(float (&values)[count], int& turn) {
    __shared__ float numbers[TEAMS][2][count][warps * CLUSTER];
    auto& of_team = numbers[threadIdx.y];
    const int half = turn % 2, lane = threadIdx.x % 32;
    tell(of_team, blockIdx.x % CLUSTER * warps + threadIdx.x / 32, values, turn);
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = lane < warps * CLUSTER ? of_team[half][i][lane] : 0.0f;
}
