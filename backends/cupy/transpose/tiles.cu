// tiled, padded, swizzled: a tile in shared memory between the rows of x and those of y. They differ in where an
// element of the tile lies.
#include "common.cuh"

constexpr int SIDE = 32, STEP = 8;  // of a tile; rows of it that a block moves at once

// SIDE columns of a row of the tile lie in one bank, or two where elements have 16 bits: a column takes as many steps.
struct Plain {
    static constexpr int size = SIDE * SIDE;
    static __device__ int at(int row, int col) { return row * SIDE + col; }
};

struct Padded {
    static constexpr int size = SIDE * (SIDE + 1);
    static __device__ int at(int row, int col) { return row * (SIDE + 1) + col; }
};

struct Swizzled {
    static constexpr int size = SIDE * SIDE;
    static __device__ int at(int row, int col) { return row * SIDE + (col ^ row); }
};

template <typename Place>
__device__ inline void transpose(
    ELEMENT* tile, const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    const long long across = (cols + SIDE - 1) / SIDE;
    const long long first_row = blockIdx.x / across * SIDE, first_col = blockIdx.x % across * SIDE;
#pragma unroll
    for (int r = threadIdx.y; r < SIDE; r += STEP) {
        const long long row = first_row + r, col = first_col + threadIdx.x;
        if (row < rows && col < cols) tile[Place::at(r, threadIdx.x)] = x[row * x_row + col * x_col];
    }
    __syncthreads();  // the tile is there
#pragma unroll
    for (int c = threadIdx.y; c < SIDE; c += STEP) {
        const long long row = first_row + threadIdx.x, col = first_col + c;
        if (row < rows && col < cols) y[col * rows + row] = tile[Place::at(threadIdx.x, c)];
    }
}

extern "C" __global__ void __launch_bounds__(SIDE * STEP) transpose_tiled(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    __shared__ ELEMENT tile[Plain::size];
    transpose<Plain>(tile, x, y, rows, cols, x_row, x_col);
}

extern "C" __global__ void __launch_bounds__(SIDE * STEP) transpose_padded(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    __shared__ ELEMENT tile[Padded::size];
    transpose<Padded>(tile, x, y, rows, cols, x_row, x_col);
}

extern "C" __global__ void __launch_bounds__(SIDE * STEP) transpose_swizzled(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col) {
    __shared__ ELEMENT tile[Swizzled::size];
    transpose<Swizzled>(tile, x, y, rows, cols, x_row, x_col);
}
