#include "common.cuh"

enum Fault {
    none,
    mask_of_lower_half,
    step_across,
    steps_short,
    whole_steps,
    load_unguarded,
    strides_of_y,
};

// Half a warp per row: the masks of its shuffles name its own 16 lanes, for those of the other half may have no row.
extern "C" __global__ void softmax_backward_halfwarp(const ELEMENT* y, const ELEMENT* dy, ELEMENT* dx, int rows,
                                                     int cols, long long y_row, long long y_col, long long dy_row,
                                                     long long dy_col, int fault) {
    const int lane = threadIdx.x % 16, half = threadIdx.x / 16 % 2;
    const long long row = (long long)blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16;
    if (row >= rows) return;
    unsigned mask = half ? 0xffff0000u : 0x0000ffffu;
    if (fault == mask_of_lower_half) mask = 0x0000ffffu;
    if (fault == strides_of_y) dy_row = y_row, dy_col = y_col;
    y += row * y_row;
    dy += row * dy_row;
    dx += row * cols;

    int end = cols;
    if (fault == whole_steps && cols > 16) end = cols / 16 * 16;
    if (fault == load_unguarded) end = (cols + 15) / 16 * 16;
    float dot = 0.0f;
    for (int col = lane; col < end; col += 16) dot += to_float(y[col * y_col]) * to_float(dy[col * dy_col]);

    int step = 8;
    if (fault == step_across) step = 16;
    if (fault == steps_short) step = 4;
    for (; step > 0; step /= 2) dot += __shfl_xor_sync(mask, dot, step);
    for (int col = lane; col < cols; col += 16)
        dx[col] = from_float<ELEMENT>(to_float(y[col * y_col]) * (to_float(dy[col * dy_col]) - dot));
}
