// A row in the shared memory of the CLUSTER blocks of a cluster, which read it there as often as they need: that takes
// few registers, and several blocks share a multiprocessor, so that some load while others compute or store.
#pragma once
#include "shares.cuh"

struct SharedRow {
    long long row;
    int begin, own;  // the columns before the block's; those from there on
    const uint4* mine;

    // The copy engine brings it, past the L1 cache. That is emptied when a thread has waited at the cluster's barrier,
    // and what any block of the multiprocessor has on its way through it is sent for once more.
    __device__ inline SharedRow(const ELEMENT* x, long long x_row, long long x_col, int cols, uint4* shared) :
        row(blockIdx.x / CLUSTER), begin(blockIdx.x % CLUSTER * across() * columns), own(cols - begin),
        mine(shared + threadIdx.x) {
        __shared__ Barrier come;
        x += row * x_row + begin * x_col;
        if (threadIdx.x == 0) barrier_init(&come, 1);
        begin_in_cluster();
        if constexpr (ALIGNED) {
            if (threadIdx.x == 0) {
                const int bytes = max(0, min(own, across() * columns)) * int(sizeof(ELEMENT));
                barrier_expect(&come, bytes);
                if (bytes > 0) copy_in_kept(shared, x, bytes, &come);
            }
            barrier_wait(&come, 0);
        } else {
#pragma unroll 2
            for (int r = 0; r < VECTORS; ++r) {
                shared[threadIdx.x + r * across()] = load_elements(x, x_col, column(r), own);
            }
        }
        cluster_wait();
    }

    // The thread's r-th vector, zeros beyond the row's end.
    __device__ inline Values operator[](int r) const {
        return {column(r) < own ? mine[r * across()] : uint4{0, 0, 0, 0}};
    }

    // Between two passes: the compiler would keep in registers what the first has read.
    __device__ inline void once_more() const {
#ifndef TOUCHSTONE_EMULATOR
        asm volatile("" ::: "memory");
#endif
    }
};

// A vector of a weight, past the L1 cache as well; zeros beyond its end.
__device__ inline Values load_past(const ELEMENT* weight, long long stride, int col, int cols) {
    if constexpr (ALIGNED) {
        return {col < cols ? __ldcg(reinterpret_cast<const uint4*>(weight + col)) : uint4{0, 0, 0, 0}};
    } else {
        return {load_elements(weight, stride, col, cols)};
    }
}
