// What kernels need whose rows wait in shared memory: each thread copies there what it alone will read, VECTORS vectors
// of 16 bytes per row, so that no barrier is needed between a copy and its use. A row is held by blockDim.x threads of
// each of CLUSTER blocks; where one block holds it, blockDim.y rows share the block.
#pragma once
#ifndef SHIFTED
#define SHIFTED 0  // rows that begin anywhere, in vectors of 16 bytes of which the first and last may not be whole
#endif
#ifndef TEAMS
#define TEAMS 1  // rows that a block of a cluster holds, one by the threads of each threadIdx.y
#endif
#include "norms.cuh"
#if CLUSTER > 1
#include "hopper.cuh"
#define IN_CLUSTERS __cluster_dims__(CLUSTER)
#else
#define IN_CLUSTERS
#endif

constexpr int lanes = lanes_of<ELEMENT>, columns = VECTORS * lanes;  // of a vector; of a thread
using Values = Vector<ELEMENT, lanes>;

#ifdef THREADS
__device__ constexpr int across() { return THREADS; }  // a row's threads in a block
#else
__device__ inline int across() { return blockDim.x; }
#endif

// Between two vectors: the compiler would begin with the loads and conversions of all of them, and spill.
__device__ inline void in_order(Values& value) {
#ifndef TOUCHSTONE_EMULATOR
    uint4& raw = value.raw;
    asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w)::"memory");
#endif
}

// The column, within the block's part of a row, with which the thread's r-th vector begins.
__device__ inline int column(int r) { return (r * across() + int(threadIdx.x)) * lanes; }

__device__ inline uint4 load_elements(const ELEMENT* row, long long stride, int col, int cols) {
    ELEMENT elements[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
        elements[i] = col + i < cols ? row[(col + i) * stride] : from_float<ELEMENT>(0.0f);
    }
    uint4 raw;
    memcpy(&raw, elements, 16);
    return raw;
}

// Zeros beyond the row's end.
__device__ inline Values load_values(const ELEMENT* row, long long stride, int col, int cols) {
    if constexpr (ALIGNED) {
        return load_vector<lanes>(row, stride, col, cols);
    } else {
        return {load_elements(row, stride, col, cols)};
    }
}

// Starts to bring a vector to shared memory; elements of other strides come at once.
__device__ inline void stage(uint4* place, const ELEMENT* row, long long stride, int col, int cols) {
    if constexpr (ALIGNED) {
        cp_async_16_kept(place, row + col, col < cols ? 16 : 0);
    } else {
        *place = load_elements(row, stride, col, cols);
    }
}

__device__ inline void store_values(ELEMENT* row, int col, int cols, const float (&values)[lanes]) {
    if (ALIGNED && whole<SHIFTED, lanes>(col, cols)) {
        // Nobody reads it soon; and nvcc splits some plain 16-byte stores into four.
        __stcs(reinterpret_cast<uint4*>(row + col), pack<ELEMENT>(values));
    } else if constexpr (SHIFTED || !ALIGNED) {
#pragma unroll
        for (int i = 0; i < lanes; ++i) {
            if (col + i < cols && (!SHIFTED || col + i >= 0)) row[col + i] = from_float<ELEMENT>(values[i]);
        }
    }
}

#if CLUSTER > 1
// What the warps of a cluster's blocks tell every block, in turns, counts at its barriers, which take turns too. The
// cluster's own barrier would wait for all stores to global memory and empty the L1 cache, row after row.
__device__ inline Barrier* told() {
    __shared__ Barrier barriers[TEAMS][2];
    return barriers[TEAMS == 1 ? 0 : threadIdx.y];
}

// Says that this block has begun, before which it may not be told anything: whoever tells waits, by cluster_wait.
__device__ inline void begin_in_cluster() {
    if (threadIdx.x == 0) {
        barrier_init(&told()[0], 1);
        barrier_init(&told()[1], 1);
        barrier_init_fence();
    }
    __syncthreads();
    cluster_arrive_relaxed();
}

// Each warp's `values` to place `own` of every block's `numbers`; waits until those of all warps have come. A half of
// `numbers` is free again at the turn after the next: who is told then has read it before it told its own.
template <int count, int places>
__device__ inline void tell(float (&numbers)[2][count][places], int own, const float (&values)[count], int& turn) {
    const int half = turn % 2, parity = turn / 2 % 2, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) barrier_expect(&told()[half], CLUSTER * (across() / 32) * count * sizeof(float));
    if (lane < CLUSTER) {
#pragma unroll
        for (int i = 0; i < count; ++i) cluster_store(&numbers[half][i][own], lane, values[i], &told()[half]);
    }
    barrier_wait(&told()[half], parity);
    ++turn;
}
#endif

// Sums over the threads of a row; every one gets the same bits. A row of one warp needs no barrier. Two halves of
// `partials` take turns as in row_sums; in a cluster every block gets all of them.
template <int count> __device__ inline void sums_of_row(float (&values)[count], int& turn) {
    constexpr int places = CLUSTER == 1 ? 32 : 16 * CLUSTER / TEAMS;  // a block has 16 warps at most
    __shared__ float of_teams[TEAMS][2][count][places];
    auto& partials = of_teams[TEAMS == 1 ? 0 : threadIdx.y];
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
    if (CLUSTER == 1 && blockDim.x == 32) return;

    const int half = turn % 2, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#if CLUSTER > 1
    const int first = 0, last = CLUSTER * warps;
    tell(partials, blockIdx.x % CLUSTER * warps + threadIdx.x / 32, values, turn);
#else
    ++turn;
    const int first = threadIdx.y * warps, own = first + threadIdx.x / 32, last = first + warps;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < count; ++i) partials[half][i][own] = values[i];
    }
    __syncthreads();
#endif
    // All loads before the first shuffle.
#pragma unroll
    for (int i = 0; i < count; ++i) {
        values[i] = 0.0f;
#pragma unroll
        for (int at = 0; at < places; at += 32) {
            values[i] += at + lane < last - first ? partials[half][i][first + at + lane] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) values[i] = warp_sum(values[i]);
}
