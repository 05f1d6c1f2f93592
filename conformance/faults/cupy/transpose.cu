// A tile of 8 by 8 through shared memory, a thread an element.
#include "common.cuh"

enum Fault {
    none,
    no_barrier,
    early_return,
    tile_not_transposed,
    bounds_of_x,
    store_unguarded,
    offset_int32,
    column_stride_ignored,
};

constexpr int SIDE = 8;

extern "C" __global__ void transpose_tiles(
    const ELEMENT* x, ELEMENT* y, int rows, int cols, long long x_row, long long x_col, int fault) {
    __shared__ ELEMENT tile[SIDE][SIDE + 1];
    const int across = (cols + SIDE - 1) / SIDE, i = threadIdx.x, j = threadIdx.y;
    const int first_row = blockIdx.x / across * SIDE, first_col = blockIdx.x % across * SIDE;
    if (fault == column_stride_ignored) x_col = 1;

    const bool is_inside = first_row + j < rows && first_col + i < cols;
    if (fault == early_return && !is_inside) return;
    long long row = (first_row + j) * x_row;
    if (fault == offset_int32) row = int(row);
    if (is_inside) tile[j][i] = x[row + (first_col + i) * x_col];
    if (fault != no_barrier) __syncthreads();

    bool stores = first_col + j < cols && first_row + i < rows;
    if (fault == bounds_of_x) stores = first_col + j < rows && first_row + i < cols;
    if (fault == store_unguarded) stores = true;
    const int r = fault == tile_not_transposed ? j : i, c = fault == tile_not_transposed ? i : j;
    // What was never filled is 0 where a fault reads it.
    const bool is_filled = first_row + r < rows && first_col + c < cols;
    if (stores) {
        y[(long long)(first_col + j) * rows + first_row + i] = is_filled ? tile[r][c] : from_float<ELEMENT>(0.0f);
    }
}
