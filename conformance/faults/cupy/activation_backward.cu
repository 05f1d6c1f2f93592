#include "activations.cuh"

enum Fault {
    none,
    last_rows_left_out,
    sums_of_the_last_row,
    no_barrier,
    half_of_the_warps,
};

// A block (32, 4) has 32 columns and all rows, whose warps take turns.
extern "C" __global__ void activation_backward_whole(
    const ELEMENT* x, const ELEMENT* bias, const ELEMENT* dy, long long x_row, long long x_col, long long b_col,
    long long dy_row, long long dy_col, ELEMENT* dx, ELEMENT* dbias, long long rows, long long cols, int activation,
    int fault) {
    __shared__ float sums[4][32];
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    for (long long row = threadIdx.y; col < cols && row < rows; row += 4) {
        float z = to_float(x[row * x_row + col * x_col]);
        if (bias) z += to_float(bias[col * b_col]);
        const float gradient = to_float(dy[row * dy_row + col * dy_col]) * slope(z, activation);
        dx[row * cols + col] = from_float<ELEMENT>(gradient);
        if (fault == sums_of_the_last_row) sum = 0.0f;
        if (fault != last_rows_left_out || row < rows / 4 * 4) sum += gradient;
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    if (fault != no_barrier) __syncthreads();
    if (threadIdx.y > 0 || col >= cols || !dbias) return;
    const int warps = fault == half_of_the_warps ? 2 : 4;
    for (int warp = 1; warp < warps; ++warp) sum += sums[warp][threadIdx.x];
    dbias[col] = from_float<ELEMENT>(sum);
}
