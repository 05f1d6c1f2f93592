// vectorised: rows of a tile come and go in pieces of 16 bytes.
#include "common.cuh"

constexpr int SIDE = 64, THREADS = 256;
constexpr int LANES = lanes_of<ELEMENT>, PIECES = SIDE / LANES;  // elements of a piece, pieces of a row

// Where piece `piece` of a row of the tile lies. Eight lanes of a warp read the same column of rows LANES apart: with
// this they find it in different banks.
__device__ inline int swizzled(int row, int piece) { return (row * PIECES + (piece ^ row / LANES % 8)) * LANES; }

// A piece of `count` elements, `stride` apart where it is not `wide`; what is beyond them stays as it was.
__device__ inline void load(ELEMENT* piece, const ELEMENT* x, long long stride, long long count, bool wide) {
    if (wide) {
        if (count > 0) *reinterpret_cast<uint4*>(piece) = *reinterpret_cast<const uint4*>(x);
        return;
    }
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
        if (i < count) piece[i] = x[i * stride];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) transpose_vectorised(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row, long long x_col, bool wide_x,
    bool wide_y) {
    __shared__ __align__(16) ELEMENT tile[SIDE * SIDE];
    const long long across = (cols + SIDE - 1) / SIDE;
    const long long first_row = blockIdx.x / across * SIDE, first_col = blockIdx.x % across * SIDE;
#pragma unroll
    for (int at = threadIdx.x; at < SIDE * PIECES; at += THREADS) {
        const int r = at / PIECES, piece = at % PIECES;
        const long long row = first_row + r, col = first_col + piece * LANES;
        if (row < rows) load(tile + swizzled(r, piece), x + row * x_row + col * x_col, x_col, cols - col, wide_x);
    }
    __syncthreads();  // the tile is there
#pragma unroll
    for (int at = threadIdx.x; at < SIDE * PIECES; at += THREADS) {
        const int c = at / 8 % SIDE, r = (at % 8 + at / (8 * SIDE) * 8) * LANES;
        const long long row = first_row + r, col = first_col + c;
        if (row >= rows || col >= cols) continue;
        __align__(16) ELEMENT piece[LANES];
#pragma unroll
        for (int i = 0; i < LANES; ++i) {
            if (row + i < rows) piece[i] = tile[swizzled(r + i, c / LANES) + c % LANES];
        }
        load(y + col * rows + row, piece, 1, rows - row, wide_y);
    }
}
