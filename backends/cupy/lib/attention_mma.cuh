// Tiles of 16-bit elements in shared memory and their fragments for mma.m16n8k16, for attention and its backward.
// THREADS threads per block; ALIGNED promises rows of whole 16-byte pieces.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

// Where element (row, col) of a tile lies. The 16-byte pieces of a row are permuted by the row, so that the eight rows
// of a matrix that ldmatrix reads touch all banks. WIDTH is 32 or a multiple of 64.
template <int WIDTH> __device__ inline int place(int row, int col) {
    static_assert(WIDTH == 32 || WIDTH % 64 == 0, "a row is 64 bytes or whole lines of 128");
    const int turn = WIDTH == 32 ? row / 2 % 4 : row % 8;
    return row * WIDTH + ((col / 8) ^ turn) * 8 + col % 8;
}

// ROWS rows of x from `first` on, zero from row `end` and column `dim` on. Where ALIGNED the copies are only started.
template <int ROWS, int WIDTH>
__device__ inline void load_tile(
    ELEMENT* tile, const ELEMENT* x, long long row_stride, long long col_stride, int first, int end, int dim) {
    if constexpr (ALIGNED) {  // eight threads per row: their pieces make a line of 128 bytes
        const int row = threadIdx.x / 8, col = threadIdx.x % 8 * 8;
        const ELEMENT* source = x + (first + row) * row_stride + col;
        ELEMENT* target = tile + place<WIDTH>(row, col);
#pragma unroll
        for (int r = row; r < ROWS; r += THREADS / 8) {
#pragma unroll
            for (int c = 0; c < WIDTH; c += 64) {
                const bool inside = first + r < end && col + c < dim;
                cp_async_16(target + c, inside ? source + c : x, inside ? 16 : 0);
            }
            source += THREADS / 8 * row_stride;
            target += THREADS / 8 * WIDTH;
        }
    } else {
        for (int e = threadIdx.x; e < ROWS * WIDTH; e += THREADS) {
            const int r = e / WIDTH, d = e % WIDTH;
            const bool inside = first + r < end && d < dim;
            tile[place<WIDTH>(r, d)] =
                inside ? x[(first + r) * row_stride + d * col_stride] : from_float<ELEMENT>(0.0f);
        }
    }
}

// The a of (16 rows, 16 columns) of a tile; or, of a tile that holds the transpose, the b of two steps of 8 columns.
template <int WIDTH> __device__ inline const ELEMENT* down(const ELEMENT* tile, int row, int col, int lane) {
    return tile + place<WIDTH>(row + lane % 16, col + lane / 16 * 8);
}
// The b of two steps of 8 columns from a tile whose rows are those columns; or a from the transpose.
template <int WIDTH> __device__ inline const ELEMENT* across(const ELEMENT* tile, int row, int col, int lane) {
    return tile + place<WIDTH>(row + lane / 16 * 8 + lane % 8, col + lane / 8 % 2 * 8);
}

// c (16, 16) in two halves of 8 columns += a (16, 16) * b (16, 16).
__device__ inline void multiply(float (&left)[4], float (&right)[4], const unsigned (&a)[4], const unsigned (&b)[4]) {
    const unsigned b_left[2] = {b[0], b[1]}, b_right[2] = {b[2], b[3]};
    mma_m16n8k16(left, a, b_left, left, ELEMENT());
    mma_m16n8k16(right, a, b_right, right, ELEMENT());
}

__device__ inline __half2 rounded(float low, float high, __half) { return __floats2half2_rn(low, high); }
__device__ inline __nv_bfloat162 rounded(float low, float high, __nv_bfloat16) {
    return __floats2bfloat162_rn(low, high);
}

__device__ inline unsigned pack(float low, float high) {
    const auto pair = rounded(low, high, ELEMENT());
    unsigned bits;
    memcpy(&bits, &pair, 4);
    return bits;
}

// Two neighbouring halves of c, rounded, are the a of a product over their columns.
__device__ inline void to_a(unsigned (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack(left[0], left[1]);
    a[1] = pack(left[2], left[3]);
    a[2] = pack(right[0], right[1]);
    a[3] = pack(right[2], right[3]);
}

// Elements d and d + 1 of a row of a contiguous (rows, dim) output.
__device__ inline void store_pair(ELEMENT* row, int d, int dim, float low, float high) {
    if (dim % 2 == 0) {
        if (d < dim) *reinterpret_cast<unsigned*>(row + d) = pack(low, high);
    } else {
        if (d < dim) row[d] = from_float<ELEMENT>(low);
        if (d + 1 < dim) row[d + 1] = from_float<ELEMENT>(high);
    }
}
