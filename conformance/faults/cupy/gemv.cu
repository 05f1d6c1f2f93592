#include "common.cuh"

enum Fault {
    none,
    row_stride_of_k,
    row_unguarded,
    half_of_a_warp,
    first_lane_sum_stored_by_all,
    offset_int,
    second_row_of_the_first,
};

// A block is 32 lanes by some rows.
extern "C" __global__ void gemv_rows(const ELEMENT* a, const ELEMENT* x, ELEMENT* y, int M, int K, long long a_row,
                                     long long a_col, long long x_step, int fault) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= M && fault != row_unguarded) return;
    if (fault == row_stride_of_k) a_row = K;
    const ELEMENT* in = fault == offset_int ? a + row * int(a_row) : a + row * a_row;
    float sum = 0.0f;
    for (int k = threadIdx.x; k < K; k += 32) sum += to_float(in[k * a_col]) * to_float(x[k * x_step]);
    for (int step = fault == half_of_a_warp ? 8 : 16; step > 0; step /= 2)
        sum += __shfl_down_sync(all_lanes, sum, step);
    if (threadIdx.x == 0 || fault == first_lane_sum_stored_by_all) y[row] = from_float<ELEMENT>(sum);
}

// A block is one warp, with half of it to a row of up to 16 columns; longer ones are walked over.
extern "C" __global__ void gemv_halves(const ELEMENT* a, const ELEMENT* x, ELEMENT* y, int M, int K, long long a_row,
                                       long long a_col, long long x_step, int fault) {
    const int row = 2 * blockIdx.x + threadIdx.x / 16;
    const ELEMENT* in = a + (fault == second_row_of_the_first ? row / 2 * 2 : row) * a_row;
    float sum = 0.0f;
    if (row < M)
        for (int k = threadIdx.x % 16; k < K; k += 16) sum += to_float(in[k * a_col]) * to_float(x[k * x_step]);
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
    if (row < M && threadIdx.x % 16 == 0) y[row] = from_float<ELEMENT>(sum);
}
