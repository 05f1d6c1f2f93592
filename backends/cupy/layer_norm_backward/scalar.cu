#include "norms.cuh"

// dx by one block per row, in three passes over memory; mean and rstd of every row go to `statistics` (2, rows).
extern "C" __global__ void layer_norm_backward_block(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long mean_row, long long rstd_row, long long rows, long long cols, float eps) {
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const ELEMENT* line = x + row * x_row;
        const ELEMENT* slope = dy + row * dy_row;

        float mean;
        if (given_mean) {
            mean = given_mean[row * mean_row];
        } else {
            float sum = 0.0f;
            for (long long col = threadIdx.x; col < cols; col += blockDim.x) sum += to_float(line[col * x_col]);
            mean = row_sum(sum, turn) / cols;
        }

        float sums[3] = {0.0f, 0.0f, 0.0f};  // of (x - mean)^2, g, g * (x - mean)
        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float centred = to_float(line[col * x_col]) - mean;
            const float g = to_float(slope[col * dy_col]) * to_float(weight[col * w_col]);
            sums[0] += centred * centred;
            sums[1] += g;
            sums[2] += g * centred;
        }
        row_sums(sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float shift = sums[1] / cols, dot = sums[2] * rstd / cols;

        for (long long col = threadIdx.x; col < cols; col += blockDim.x) {
            const float normed = (to_float(line[col * x_col]) - mean) * rstd;
            const float g = to_float(slope[col * dy_col]) * to_float(weight[col * w_col]);
            dx[row * cols + col] = from_float<ELEMENT>(rstd * (g - shift - normed * dot));
        }
        if (threadIdx.x == 0) {
            statistics[row] = mean;
            statistics[rows + row] = rstd;
        }
    }
}

// dweight and dbias by one thread per column.
extern "C" __global__ void layer_norm_backward_columns(
    const ELEMENT* x, const ELEMENT* dy, const float* statistics, ELEMENT* dweight, ELEMENT* dbias, long long x_row,
    long long x_col, long long dy_row, long long dy_col, long long rows, long long cols) {
    const long long col = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float dw = 0.0f, db = 0.0f;
    for (long long row = 0; row < rows; ++row) {
        const float slope = to_float(dy[row * dy_row + col * dy_col]);
        dw += slope * (to_float(x[row * x_row + col * x_col]) - statistics[row]) * statistics[rows + row];
        db += slope;
    }
    dweight[col] = from_float<ELEMENT>(dw);
    dbias[col] = from_float<ELEMENT>(db);
}

// dx by one warp per row, every lane with every 32nd column in its registers.
extern "C" __global__ void layer_norm_backward_warp(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* statistics, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long mean_row, long long rstd_row, long long rows, int cols, float eps) {
    constexpr int held = 32;
    const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;  // a whole warp
    x += row * x_row;
    dy += row * dy_row;
    dx += row * cols;

    float centred[held], g[held];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        centred[i] = col < cols ? to_float(x[col * x_col]) : 0.0f;
        g[i] = col < cols ? to_float(dy[col * dy_col]) * to_float(weight[col * w_col]) : 0.0f;
        sum += centred[i];
    }
    const float mean = given_mean ? given_mean[row * mean_row] : warp_sum(sum) / cols;

    float square = 0.0f, shift = 0.0f, dot = 0.0f;
#pragma unroll
    for (int i = 0; i < held; ++i) {
        centred[i] -= mean;
        if (i * 32 + threadIdx.x < cols) square += centred[i] * centred[i];
        shift += g[i];
        dot += g[i] * centred[i];
    }
    square = warp_sum(square);
    const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(square / cols + eps);
    shift = warp_sum(shift) / cols;
    dot = warp_sum(dot) * rstd / cols;

#pragma unroll
    for (int i = 0; i < held; ++i) {
        const int col = i * 32 + threadIdx.x;
        if (col < cols) dx[col] = from_float<ELEMENT>(rstd * (g[i] - shift - centred[i] * rstd * dot));
    }
    if (threadIdx.x == 0) {
        statistics[row] = mean;
        statistics[rows + row] = rstd;
    }
}

// dweight and dbias by a block of 32 columns, its warps sharing the rows.
extern "C" __global__ void layer_norm_backward_strips(
    const ELEMENT* x, const ELEMENT* dy, const float* statistics, ELEMENT* dweight, ELEMENT* dbias, long long x_row,
    long long x_col, long long dy_row, long long dy_col, long long rows, long long cols) {
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sums[2] = {0.0f, 0.0f};
    if (col < cols) {
        for (long long row = threadIdx.y; row < rows; row += blockDim.y) {
            const float slope = to_float(dy[row * dy_row + col * dy_col]);
            sums[0] += slope * (to_float(x[row * x_row + col * x_col]) - statistics[row]) * statistics[rows + row];
            sums[1] += slope;
        }
    }
    column_sums(sums);
    if (threadIdx.y == 0 && col < cols) {
        dweight[col] = from_float<ELEMENT>(sums[0]);
        dbias[col] = from_float<ELEMENT>(sums[1]);
    }
}

constexpr int kept = 8;  // columns of a row in a thread's registers: blockDim.x * i + threadIdx.x

// dx of every gridDim.x-th row, and the sums of those rows for dweight and dbias.
__device__ inline void rows_in_registers(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float (&dweight)[kept], float (&dbias)[kept], long long x_row, long long x_col, long long w_col,
    long long dy_row, long long dy_col, long long mean_row, long long rstd_row, long long rows, int cols, float eps) {
#pragma unroll
    for (int i = 0; i < kept; ++i) dweight[i] = dbias[i] = 0.0f;
    int turn = 0;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        float centred[kept], slope[kept];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const int col = i * blockDim.x + threadIdx.x;
            centred[i] = col < cols ? to_float(x[row * x_row + col * x_col]) : 0.0f;
            slope[i] = col < cols ? to_float(dy[row * dy_row + col * dy_col]) : 0.0f;
            sum += centred[i];
        }
        const float mean = given_mean ? given_mean[row * mean_row] : row_sum(sum, turn) / cols;

        float sums[3] = {0.0f, 0.0f, 0.0f};  // of (x - mean)^2, g, g * (x - mean)
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const int col = i * blockDim.x + threadIdx.x;
            if (col >= cols) break;
            const float g = slope[i] * to_float(weight[col * w_col]);
            centred[i] -= mean;
            sums[0] += centred[i] * centred[i];
            sums[1] += g;
            sums[2] += g * centred[i];
        }
        row_sums(sums, turn);
        const float rstd = given_rstd ? given_rstd[row * rstd_row] : rsqrtf(sums[0] / cols + eps);
        const float shift = sums[1] / cols, dot = sums[2] * rstd / cols;

#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const int col = i * blockDim.x + threadIdx.x;
            if (col >= cols) break;
            const float normed = centred[i] * rstd, g = slope[i] * to_float(weight[col * w_col]);
            dx[row * cols + col] = from_float<ELEMENT>(rstd * (g - shift - normed * dot));
            dweight[i] += slope[i] * normed;
            dbias[i] += slope[i];
        }
    }
}

// The sums of a block are one row of `partial` (2, blocks, cols): dweight's, then dbias's.
extern "C" __global__ void __launch_bounds__(1024) layer_norm_backward_partials(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* partial, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long mean_row, long long rstd_row, long long rows, int cols, float eps) {
    float dweight[kept], dbias[kept];
    rows_in_registers(
        x, weight, dy, given_mean, given_rstd, dx, dweight, dbias, x_row, x_col, w_col, dy_row, dy_col, mean_row,
        rstd_row, rows, cols, eps);
#pragma unroll
    for (int i = 0; i < kept; ++i) {
        const int col = i * blockDim.x + threadIdx.x;
        if (col >= cols) break;
        partial[(long long)blockIdx.x * cols + col] = dweight[i];
        partial[((long long)gridDim.x + blockIdx.x) * cols + col] = dbias[i];
    }
}

// The sums of all blocks meet in `total` (2, cols).
extern "C" __global__ void __launch_bounds__(1024) layer_norm_backward_atomics(
    const ELEMENT* x, const ELEMENT* weight, const ELEMENT* dy, const float* given_mean, const float* given_rstd,
    ELEMENT* dx, float* total, long long x_row, long long x_col, long long w_col, long long dy_row,
    long long dy_col, long long mean_row, long long rstd_row, long long rows, int cols, float eps) {
    float dweight[kept], dbias[kept];
    rows_in_registers(
        x, weight, dy, given_mean, given_rstd, dx, dweight, dbias, x_row, x_col, w_col, dy_row, dy_col, mean_row,
        rstd_row, rows, cols, eps);
#pragma unroll
    for (int i = 0; i < kept; ++i) {
        const int col = i * blockDim.x + threadIdx.x;
        if (col >= cols) break;
        atomicAdd(total + col, dweight[i]);
        atomicAdd(total + cols + col, dbias[i]);
    }
}

// The sums of `partial` (2, parts, cols) over the parts, always in the same order.
extern "C" __global__ void layer_norm_backward_reduce(
    const float* partial, ELEMENT* dweight, ELEMENT* dbias, long long parts, long long cols) {
    const long long col = (long long)blockIdx.x * 32 + threadIdx.x;
    float sums[2] = {0.0f, 0.0f};
    if (col < cols) {
#pragma unroll 8
        for (long long part = threadIdx.y; part < parts; part += blockDim.y) {
            sums[0] += partial[part * cols + col];
            sums[1] += partial[(parts + part) * cols + col];
        }
    }
    column_sums(sums);
    if (threadIdx.y == 0 && col < cols) {
        dweight[col] = from_float<ELEMENT>(sums[0]);
        dbias[col] = from_float<ELEMENT>(sums[1]);
    }
}
