#include "norms.cuh"

// dx by one block per row, in two passes over memory; rstd of every row goes to `statistics` (rows,).
extern "C" __global__ void rms_norm_backward_block(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx,
    float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col,
    long long rstd_row, long long rows, long long cols, float eps) {
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* line = x + row * x_row;
        const ELEMENT* slope = dy + row * dy_row;

        float sums[2] = {0.0f, 0.0f};  // of x^2, g * x
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float value = to_float(line[col * x_col]);
            sums[0] += value * value;
            sums[1] += to_float(slope[col * dy_col]) * to_float(weight[col * w_col]) * value;
        }
        row_sums(sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float dot = sums[1] * rstd / cols;

        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float g = to_float(slope[col * dy_col]) * to_float(weight[col * w_col]);
            dx[row * cols + col] = from_float<ELEMENT>(rstd * (g - to_float(line[col * x_col]) * rstd * dot));
        }
        if (threadIdx.x == 0) statistics[row] = rstd;
    }
}

// dweight by one thread per column.
extern "C" __global__ void rms_norm_backward_columns(
    const ELEMENT* x, const ELEMENT* dy, const float* statistics, ELEMENT* dweight, long long x_row, long long x_col,
    long long dy_row, long long dy_col, long long rows, long long cols) {
    const long long col = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (long long row = 0; row < rows; ++row) {
        sum += to_float(dy[row * dy_row + col * dy_col]) * to_float(x[row * x_row + col * x_col]) * statistics[row];
    }
    dweight[col] = from_float<ELEMENT>(sum);
}

// dx by one warp per row, every lane with every 32nd column in its registers.
extern "C" __global__ void rms_norm_backward_warp(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx,
    float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col,
    long long rstd_row, long long rows, int cols, float eps) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    x += row * x_row;
    dy += row * dy_row;
    dx += row * cols;

    float values[held], g[held];
    float square = 0.0f, dot = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        values[i] = col < cols ? to_float(x[col * x_col]) : 0.0f;
        g[i] = col < cols ? to_float(dy[col * dy_col]) * to_float(weight[col * w_col]) : 0.0f;
        square += values[i] * values[i];
        dot += g[i] * values[i];
    }
    square = warp_sum(square);
    const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(square / cols + eps);
    dot = warp_sum(dot) * rstd / cols;

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) dx[col] = from_float<ELEMENT>(rstd * (g[i] - values[i] * rstd * dot));
    }
    if (threadIdx.x == 0) statistics[row] = rstd;
}

// dweight by a block of 32 columns, its warps sharing the rows.
extern "C" __global__ void rms_norm_backward_strips(
    const ELEMENT* x, const ELEMENT* dy, const float* statistics, ELEMENT* dweight, long long x_row, long long x_col,
    long long dy_row, long long dy_col, long long rows, long long cols) {
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sums[1] = {0.0f};
    if (col < cols) {
        for (long long row = threadIdx.y; row < rows; row += blockDim.y) {
            sums[0] +=
                to_float(dy[row * dy_row + col * dy_col]) * to_float(x[row * x_row + col * x_col]) * statistics[row];
        }
    }
    column_sums(sums);
    if (threadIdx.y == 0 && col < cols) dweight[col] = from_float<ELEMENT>(sums[0]);
}

constexpr int kept = 8;  // columns of a row in a thread's registers: blockDim.x * i + threadIdx.x

// dx of every gridDim.x-th row, and the sums of those rows for dweight.
__device__ inline void rows_in_registers(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx,
    float (&dweight)[kept], long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col,
    long long rstd_row, long long rows, int cols, float eps) {
#pragma unroll
    for (int i = 0; i < kept; ++i) dweight[i] = 0.0f;
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        float values[kept], slope[kept];
        float sums[2] = {0.0f, 0.0f};  // of x^2, g * x
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const int col = i * blockDim.x + threadIdx.x;
            if (col >= cols) break;
            values[i] = to_float(x[row * x_row + col * x_col]);
            slope[i] = to_float(dy[row * dy_row + col * dy_col]);
            sums[0] += values[i] * values[i];
            sums[1] += slope[i] * to_float(weight[col * w_col]) * values[i];
        }
        row_sums(sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float dot = sums[1] * rstd / cols;

#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const int col = i * blockDim.x + threadIdx.x;
            if (col >= cols) break;
            const float normed = values[i] * rstd, g = slope[i] * to_float(weight[col * w_col]);
            dx[row * cols + col] = from_float<ELEMENT>(rstd * (g - normed * dot));
            dweight[i] += slope[i] * normed;
        }
    }
}

// The sums of a block are one row of `partial` (blocks, cols).
extern "C" __global__ void __launch_bounds__(1024) rms_norm_backward_partials(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx, float* partial,
    long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col, long long rstd_row,
    long long rows, int cols, float eps) {
    float dweight[kept];
    rows_in_registers(
        x, weight, dy, given_rstd, dx, dweight, x_row, x_col, w_col, dy_row, dy_col, rstd_row, rows, cols, eps);
#pragma unroll
    for (int i = 0; i < kept; ++i) {
        const int col = i * blockDim.x + threadIdx.x;
        if (col < cols) partial[(long long)blockIdx.x * cols + col] = dweight[i];
    }
}

// The sums of all blocks meet in `total` (cols,).
extern "C" __global__ void __launch_bounds__(1024) rms_norm_backward_atomics(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_rstd, ELEMENT* dx, float* total,
    long long x_row, long long x_col, long long w_col, long long dy_row, long long dy_col, long long rstd_row,
    long long rows, int cols, float eps) {
    float dweight[kept];
    rows_in_registers(
        x, weight, dy, given_rstd, dx, dweight, x_row, x_col, w_col, dy_row, dy_col, rstd_row, rows, cols, eps);
#pragma unroll
    for (int i = 0; i < kept; ++i) {
        const int col = i * blockDim.x + threadIdx.x;
        if (col < cols) atomicAdd(total + col, dweight[i]);
    }
}

// The sums of `partial` (parts, cols) over the parts, always in the same order.
extern "C" __global__ void rms_norm_backward_reduce(
    const float* partial, ELEMENT* dweight, long long parts, long long cols) {
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sums[1] = {0.0f};
    if (col < cols) {
#pragma unroll 8
        for (long long part = threadIdx.y; part < parts; part += blockDim.y) sums[0] += partial[part * cols + col];
    }
    column_sums(sums);
    if (threadIdx.y == 0 && col < cols) dweight[col] = from_float<ELEMENT>(sums[0]);
}
