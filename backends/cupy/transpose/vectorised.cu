// vectorised: rows of a tile come and go in pieces of 16 bytes, of which the rows of x and of y are made.
#include "common.cuh"

constexpr int SIDE = 64, THREADS = 256;
constexpr int LANES = lanes_of<ELEMENT>, PIECES = SIDE / LANES;  // elements of a piece, pieces of a row
constexpr int TURNS = SIDE * PIECES / THREADS;                   // pieces of a thread

// Where piece `piece` of a row of the tile lies. Eight lanes of a warp read the same column of rows LANES apart: with
// this they find it in different banks.
__device__ inline unsigned swizzled(unsigned row, unsigned piece) { return (row * PIECES + (piece ^ row / LANES % 8)) * LANES; }

extern "C" __global__ void __launch_bounds__(THREADS) transpose_vectorised(
    const ELEMENT* x, ELEMENT* y, long long rows, long long cols, long long x_row) {
    __shared__ __align__(16) ELEMENT tile[SIDE * SIDE];
    const unsigned across = (cols + SIDE - 1) / SIDE;  // fewer than a grid's blocks: a division of 32 bits
    const long long first_row = blockIdx.x / across * (long long)SIDE, first_col = blockIdx.x % across * (long long)SIDE;
    uint4 held[TURNS];  // on their way together
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned at = turn * THREADS + threadIdx.x;
        const long long row = first_row + at / PIECES, col = first_col + at % PIECES * LANES;
        if (row < rows && col < cols) held[turn] = *reinterpret_cast<const uint4*>(x + row * x_row + col);
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
        const unsigned at = turn * THREADS + threadIdx.x, r = at / PIECES, piece = at % PIECES;
        if (first_row + r >= rows || first_col + piece * LANES >= cols) continue;
        *reinterpret_cast<uint4*>(tile + swizzled(r, piece)) = held[turn];
    }
    __syncthreads();  // the tile is there
#pragma unroll
    for (unsigned at = threadIdx.x; at < SIDE * PIECES; at += THREADS) {
        const unsigned c = at / 8 % SIDE, r = (at % 8 + at / (8 * SIDE) * 8) * LANES;
        const long long row = first_row + r, col = first_col + c;
        if (row >= rows || col >= cols) continue;
        const ELEMENT* column = tile + swizzled(r, c / LANES) + c % LANES;  // LANES rows have their pieces in one place
        __align__(16) ELEMENT piece[LANES];
#pragma unroll
        for (int i = 0; i < LANES; ++i) piece[i] = column[i * SIDE];
        // by name: the compiler makes four stores of 4 bytes of an assignment
        __stcg(reinterpret_cast<uint4*>(y + col * rows + row), *reinterpret_cast<const uint4*>(piece));
    }
}
