// Rows that follow one another in the registers of a block that stays, with the next STAGES rows on their way to shared
// memory.
#pragma once
#include "shares.cuh"

// The rows of a block that stays, each of its threads with VECTORS vectors of every one. Shared memory holds STAGES
// rows: [VECTORS][threads] each.
struct StayingRows {
    const ELEMENT* x;
    long long x_row, x_col, rows, step, row;  // `row`: the one whose values `next` gave
    int cols, s = 0;                          // the columns of a row; the stage to take
    uint4* mine;

    __device__ inline StayingRows(
        const ELEMENT* x, long long x_row, long long x_col, long long rows, int cols, uint4* shared) :
        x(x), x_row(x_row), x_col(x_col), rows(rows), step(gridDim.x), row(blockIdx.x - step), cols(cols),
        mine(shared + threadIdx.x) {
        for (int s = 0; s < STAGES; ++s) send_for(place(s), row + (s + 1) * step);
    }

    __device__ inline uint4* place(int s) const { return mine + s * VECTORS * blockDim.x; }

    // Zeros where there is no such row.
    __device__ inline void send_for(uint4* held, long long row) const {
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) {
            stage(held + r * blockDim.x, x + row * x_row, x_col, column(r), row < rows ? cols : 0);
        }
        cp_async_commit();
    }

    // The next row's values, once they are there, and sends for the row that takes their place.
    __device__ inline bool next(Values (&values)[VECTORS]) {
        row += step;
        if (row >= rows) {
            cp_async_wait<0>();
            return false;
        }
        uint4* const held = place(s);
        s = s + 1 == STAGES ? 0 : s + 1;
        cp_async_wait<STAGES - 1>();
#pragma unroll
        for (int r = 0; r < VECTORS; ++r) values[r].raw = held[r * blockDim.x];
        send_for(held, row + STAGES * step);
        return true;
    }
};
