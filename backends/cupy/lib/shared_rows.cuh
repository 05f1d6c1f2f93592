// A row in the shared memory of the CLUSTER blocks of a cluster, which read it there as often as they need: that takes
// few registers, and several blocks share a multiprocessor, so that some load while others compute or store.
#pragma once
#include "shares.cuh"

struct SharedRow {
    const long long row;
    const int cols, begin;  // the columns before the block's vectors; where SHIFTED, the first may be before the row's
    uint4* const mine;

    // The copy engine brings it, past the L1 cache. That is emptied when a thread has waited at the cluster's barrier,
    // and what any block of the multiprocessor has on its way through it is sent for once more.
    __device__ inline SharedRow(const ELEMENT* x, long long x_row, long long x_col, int cols, uint4* shared) :
        row(blockIdx.x / CLUSTER), cols(cols),
        begin(blockIdx.x % CLUSTER * across() * columns - lead_of<SHIFTED, lanes>(row, cols)),
        mine(shared + threadIdx.x) {
        __shared__ Barrier come;
        x += row * x_row;
        if (threadIdx.x == 0) barrier_init(&come, 1);
        begin_in_cluster();
        if constexpr (ALIGNED) {
            if (threadIdx.x == 0) send_for(x, shared, &come);
            if constexpr (SHIFTED) {
                for (int r = 0; r < VECTORS; ++r) {
                    if (column(r) < cols && !whole<SHIFTED, lanes>(column(r), cols)) {
                        mine[r * across()] = load_row<SHIFTED, lanes>(x, 1, column(r), cols).raw;
                    }
                }
            }
            barrier_wait(&come, 0);
        } else {
#pragma unroll 2
            for (int r = 0; r < VECTORS; ++r) mine[r * across()] = load_elements(x, x_col, column(r), cols);
        }
        cluster_wait();
    }

    // The whole vectors of the block's part.
    __device__ inline void send_for(const ELEMENT* x, uint4* shared, Barrier* come) const {
        const int first = begin < 0 ? 1 : 0;
        const int end = min((cols - begin) / lanes, across() * VECTORS);
        const int bytes = max(0, end - first) * 16;
        barrier_expect(come, bytes);
        if (bytes > 0) copy_in_kept(shared + first, x + begin + first * lanes, bytes, come);
    }

    // The column with which the thread's r-th vector begins.
    __device__ inline int column(int r) const { return begin + ::column(r); }

    // The thread's r-th vector, zeros for what is not of the row.
    __device__ inline Values operator[](int r) const {
        return {column(r) < cols ? mine[r * across()] : uint4{0, 0, 0, 0}};
    }

    // Between two passes: the compiler would keep in registers what the first has read.
    __device__ inline void once_more() const {
#ifndef TOUCHSTONE_EMULATOR
        asm volatile("" ::: "memory");
#endif
    }
};

// 16 bytes that begin `skipped` elements after the first of two vectors of 16.
__device__ inline uint4 across_two(const uint4& first, const uint4& second, int skipped) {
    unsigned words[8];
    memcpy(words, &first, 16);
    memcpy(words + 4, &second, 16);
    const int bits = skipped * 8 * int(sizeof(ELEMENT));
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = bits & 64 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = bits & 32 ? words[i + 1] : words[i];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits & 31);
    return {words[0], words[1], words[2], words[3]};
}

// A vector of a weight, past the L1 cache as well; zeros beyond its end. Where SHIFTED, it lies across two of the
// weight's: through the L1 cache they took three times as long (an H200).
__device__ inline Values load_past(const ELEMENT* weight, long long stride, int col, int cols) {
    if constexpr (SHIFTED) {
        const int skipped = unsigned(col) % lanes, from = col - skipped;
        if (stride != 1 || from < 0 || from + 2 * lanes > cols || reinterpret_cast<size_t>(weight) % 16) {
            return load_along<SHIFTED, lanes>(weight, stride, col, cols);
        }
        const uint4* const two = reinterpret_cast<const uint4*>(weight + from);
        return {across_two(__ldcg(two), __ldcg(two + 1), skipped)};
    } else if constexpr (ALIGNED) {
        return {col < cols ? __ldcg(reinterpret_cast<const uint4*>(weight + col)) : uint4{0, 0, 0, 0}};
    } else {
        return {load_elements(weight, stride, col, cols)};
    }
}
