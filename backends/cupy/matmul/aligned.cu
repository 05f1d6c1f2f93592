// aligned: a matrix with rows that start at lines of the cache, for the copy engine.
#include "common.cuh"

extern "C" __global__ void matmul_in_lines(
    const ELEMENT* x, ELEMENT* y, int rows, int cols, long long stride_r, long long stride_c, int pitch
) {
    // A block has 2048 columns of a row. Elements come one by one: eight at a time are on their way to each thread.
    const int across = (cols + 2047) / 2048;
    const long long r = blockIdx.x / across;
    const int first = blockIdx.x % across * 2048 + threadIdx.x;
    ELEMENT held[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int c = first + 256 * i;
        if (c < cols) held[i] = x[r * stride_r + c * stride_c];
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int c = first + 256 * i;
        if (c < cols) y[r * pitch + c] = held[i];
    }
}
